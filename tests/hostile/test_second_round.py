"""The smaller findings of the second round: what a recipe, a name, a layer or a job's own words may
not do.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from hpcstack.core.errors import ProblemsError, StoreError
from hpcstack.core.process import Runner
from hpcstack.core.yaml import parse_yaml
from hpcstack.oci.flatten import ClimbsOut, make_entry
from hpcstack.recipe.model import IMAGE
from hpcstack.squashfs.read import Squashfs
from hpcstack.store.signing import explain_distrust
from support import crafted
from support.modules import Place


@pytest.mark.parametrize("text", ["%TAG ! x\n" * 71_000, "a: 1\n%YAML 1.1\n"], ids=["many", "one"])
def test_directives_are_refused_at_once(text: str) -> None:
    """N15: 71,000 of them took seven seconds."""
    began = time.monotonic()
    with pytest.raises(ProblemsError) as refused:
        parse_yaml(text, "x.yaml")
    assert "a line that begins with % is a directive" in str(refused.value)
    assert time.monotonic() - began < 1


RECIPE_HEAD = (
    "apiVersion: hpcstack/v1\nname: x\nsummary: s\nbase: {image: docker.io/library/debian:12}\n"
)


@pytest.mark.parametrize(
    "text",
    [
        "replace: [1]\n", "extends: _t\n", "extends: _t\nreplace: [1]\n",
        RECIPE_HEAD + ("matrix: {version: {'1': {replace: " "[1]}}}\n"), RECIPE_HEAD + ("version: '1'\nreplace: " "[1]\n"),
    ],
)  # fmt: skip
def test_a_recipe_that_replaces_itself_by_a_list_is_refused(tmp_path: Path, text: str) -> None:
    """Found by fuzzing: `{replace: [...]}` at the top made a list of the recipe, and a traceback."""
    from hpcstack.recipe.catalog import Catalog

    (tmp_path / "x.yaml").write_text(text)
    (tmp_path / "_t.yaml").write_text("replace: [1]\n")
    with pytest.raises(ProblemsError):
        Catalog([tmp_path]).read(tmp_path / "x.yaml")


def test_of_many_unknown_keys_fifty_are_told(tmp_path: Path) -> None:
    """N15: 45,000 unknown keys took four seconds."""
    from hpcstack.recipe.catalog import Catalog

    head = (
        "apiVersion: hpcstack/v1\nname: many\nversion: '1'\nsummary: x\nbase: {image: "
        "nvcr.io/a/b:1}\n"
    )
    (tmp_path / "many-1.yaml").write_text(
        head + "".join(f"k{number}: 1\n" for number in range(2000))
    )
    with pytest.raises(ProblemsError) as refused:
        Catalog([tmp_path]).read(tmp_path / "many-1.yaml")
    assert len(refused.value.problems) == 50


@pytest.mark.parametrize(
    "image",
    ["nvcr.io/nvidia/../../hub-proxy/evil:1", "nvcr.io/a..b/c:1", "nvcr.io/a//b:1", "nvcr.io/a/_b:1", "nvcr.io/a/b_:1",
     "nvcr.io/a.-b:1", "nvcr.io/./b:1"],
)  # fmt: skip
def test_a_repository_that_a_url_would_fold_is_none(image: str) -> None:
    """N16: urllib3 folded `..`, and the mirror's project was left."""
    assert IMAGE.fullmatch(image) is None


@pytest.mark.parametrize(
    "image",
    ["nvcr.io/nvidia/pytorch:24.11-py3", "nvcr.io/a/b__c:1", "nvcr.io/a/b---c.d:1", "localhost:5000/x:1"],
)  # fmt: skip
def test_names_as_registries_have_them_are_taken(image: str) -> None:
    assert IMAGE.fullmatch(image)


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.REGTYPE]
)
@pytest.mark.parametrize("name", ["", ".", "./", "/"])
def test_a_layers_root_is_a_folder(kind: bytes, name: str) -> None:
    """N21: exit 4, and "is the disk damaged?"."""
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, "etc"
    with pytest.raises(ClimbsOut, match="in the place of its root"):
        make_entry(member)


def test_following_a_log_commands_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N24: `logs -f` handed a job's raw bytes to the terminal."""
    from hpcstack.cli.logs_ import _follow
    from hpcstack.launch.jobs import JobPart
    from hpcstack.slurm.state import JobState

    log = tmp_path / "log"
    log.write_bytes(b"one\x1b]0;title\x07\ntwo\n")
    ended = [JobPart("7", JobState("COMPLETED"), files=(log,))]
    monkeypatch.setattr("hpcstack.launch.jobs.find_job_parts", lambda *_: ended)
    session: Any = SimpleNamespace(runner=Runner())
    runner = CliRunner()
    with runner.isolation() as (out, *_):
        _follow(session, "7", 50)
        said = out.getvalue().decode()
    assert said == "one\ufffd]0;title\ufffd\ntwo\n"


@pytest.mark.parametrize("lacks", ["stack", "lock_sha256", "sha256"])
def test_a_record_that_names_nothing_passes_with_no_signature(tmp_path: Path, lacks: str) -> None:
    """N11: an empty stack or lock in artifact.json was "not compared", so another image's signature
    passed.
    """
    place = Place(tmp_path)
    artifact = replace(place.artifact(place.stack()), **dict[str, Any]({lacks: ""}))
    assert (
        explain_distrust(artifact, ("ssh-ed25519 AAAA",), Runner())
        == f"its record names no {lacks.replace('_', ' ')}"
    )


def test_an_image_of_another_stack_is_not_the_release(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.publish()
    (record,) = (place.store.top / "images").glob("*/artifact.json")
    document = json.loads(record.read_text())
    record.chmod(0o644)
    for stack in ("pytorch-6.66", ""):
        record.write_text(json.dumps({**document, "stack": stack}))
        with pytest.raises(StoreError, match="says that it is one of"):
            place.names().find_image("pytorch-24.11")


STACK = b"stack.json"


def image_of_one_file(
    *, blocks: int = 0, size: int = 0, fragment: int = 0xFFFFFFFF
) -> tuple[bytes, bytes]:
    """Inodes and folders of an image that has /opt/hpcstack/stack.json alone, of so many BLOCKS."""
    way = [(b"opt", 2, 1), (b"hpcstack", 3, 1), (STACK, 4, 2)]  # name, inode's number, kind
    room = len(crafted.folder(1, 0))
    listed, inodes = b"", b""
    for at, (name, number, kind) in enumerate(way):
        one = crafted.listing([(name, number, (at + 1) * room, kind)])
        inodes += struct.pack(
            "<4H2I2I2HI", 1, 0o755, 0, 0, 0, at + 1, 0, 2, len(one) + 3, len(listed), 1
        )
        listed += one
    head = struct.pack("<4H2I", 9, 0o644, 0, 0, 0, 4)
    file = head + struct.pack("<3Q4I", 0, blocks << 12 or size, 0, 1, fragment, 0, 0xFFFFFFFF)
    return inodes + file + bytes(4 * blocks), listed


def crowded(names: int) -> crafted.Crafted:
    """A root with so many NAMES, which come before the one that is looked for."""
    listed = crafted.listing([(b"a%06d" % number, 2, 0, 2) for number in range(names)])
    return crafted.Crafted(crafted.large_folder(1, len(listed)), listed)


HOSTILE: dict[str, Callable[[], crafted.Crafted]] = {
    "holes for tables": lambda: crafted.Crafted(*image_of_one_file(), hole=1 << 30),
    "holes where fragments are": lambda: crafted.Crafted(
        *image_of_one_file(size=10, fragment=0), fragments=bytes(16 * 1000), hole=1 << 29
    ),
    "a million fragments and more": lambda: crafted.Crafted(
        *image_of_one_file(size=10, fragment=0), fragments=bytes(16 << 20) + bytes(16)
    ),
    "a million fragments": lambda: crafted.Crafted(
        *image_of_one_file(size=10, fragment=0), fragments=bytes(16 << 20)
    ),
    "a file of 100 million holes": lambda: crafted.Crafted(
        *image_of_one_file(blocks=100 << 20), block_log=12
    ),
    "four million names in a folder": lambda: crowded(4_000_000),
    "a million names in a folder": lambda: crowded(1 << 20),
    "blocks of two gigabytes": lambda: crafted.Crafted(*image_of_one_file(), block_log=31),
}
MEASURED = """
import re, sys, time
from pathlib import Path
from hpcstack.build.verify import describe_image_file
from hpcstack.core.errors import HpcstackError
from hpcstack.naming.names import ImageFile
from hpcstack.store.store import Store
def peak():  # KiB that this program has had at most; ru_maxrss would count what it was forked from
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
before, began = peak(), time.process_time()
try:
    said = describe_image_file(ImageFile(Path(sys.argv[1]), None), Store(Path("/nowhere")))
except HpcstackError as error:
    said = error.message
print(peak() - before, time.process_time() - began, said)
"""


def test_what_is_crafted_can_be_read(tmp_path: Path) -> None:
    """Else the refusals below would say nothing."""
    with Squashfs(crafted.Crafted(*image_of_one_file()).write(tmp_path / "image.sqsh")) as image:
        found = image.find(b"opt/hpcstack/stack.json")
        assert found
        assert (found.kind, found.size) == (2, 0)
    with Squashfs(crowded(1000).write(tmp_path / "crowded.sqsh")) as image:
        assert len(image.listing(image.root())) == 1000


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_a_small_image_costs_to_look_at(tmp_path: Path, kind: str) -> None:
    """N14: 16 KB of holes took 3.2 GB, 676 KB 763 MB, 12 MB 979 MB and 26 s."""
    path = HOSTILE[kind]().write(tmp_path / "image.sqsh")
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(path)], capture_output=True, text=True, check=True
    )
    kib, seconds, *_ = done.stdout.split()
    assert int(kib) < 200 << 10, done.stdout
    assert float(seconds) < 10, done.stdout
