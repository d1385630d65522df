"""Four fuzzers, a few seconds each here; `ci/soak fuzz` runs each for ten minutes
(HPCSTACK_FUZZ_SECONDS).

Image configs through lock, render and every reader of what is rendered; layers through import, time
and memory bounded, the result read back; recipes through lint; bundles through apply. Nothing may
end in a traceback, and nothing that was taken may say more in a rendered file than a line of ours.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import make_site
from hpcstack.build.bundle_apply import apply_bundle
from hpcstack.core import data
from hpcstack.core.bounds import Bounds
from hpcstack.core.errors import HpcstackError
from hpcstack.core.process import Runner
from hpcstack.core.progress import Progress
from hpcstack.core.untrusted import parse_untrusted_json
from hpcstack.lint import find_warnings
from hpcstack.oci.client import Answer
from hpcstack.oci.config import read_image_config_of
from hpcstack.oci.importer import pack_image
from hpcstack.oci.reference import parse_reference
from hpcstack.oci.sources import FromLayout
from hpcstack.preview import render_stack_files
from hpcstack.recipe.catalog import Catalog
from hpcstack.render.readback import check_definition
from hpcstack.resolve.base import resolve_base
from support.bundles import RECIPE, make_bundle
from support.clock import processor_seconds
from support.layers import folder, hard, held, layout, link, member, tar, zipped

SECONDS = float(os.environ.get("HPCSTACK_FUZZ_SECONDS", "4"))
pytestmark = pytest.mark.timeout(SECONDS + 240)
NASTY = ["\n", "\r", "\0", "\x1b[2J", "\u2028", "%setup\n", "$(id)", "`id`", "'", '"', "\\", "${PATH}", "{{ x }}", "]]", "--", "\t",
         "EOF", "HPCSTACK_BUILD", "\x85", "\u202e", " ", ";", "&&", "#", "[", "]", "$", "é", "\U0001f600", "%", "=", ":"]  # fmt: skip
PIECES = st.one_of(st.sampled_from(NASTY), st.text(max_size=6))
TEXT = st.lists(PIECES, max_size=5).map("".join)
FEW = settings(
    max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), database=None
)


def keep_on(tried: Callable[[], None]) -> None:
    """TRIED again, with other examples each time, until the time is over."""
    end = time.monotonic() + SECONDS
    while True:
        tried()
        if time.monotonic() >= end:
            return


# -- image configs

NAMES = st.one_of(
    st.sampled_from(["PATH", "LD_PRELOAD", "BASH_ENV", "CUDA_VERSION", "PYTORCH_VERSION", "A"]),
    TEXT,
)
LISTS = st.lists(TEXT, max_size=4)
ANY = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), TEXT),
    lambda inner: st.lists(inner, max_size=3),
)
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "Env": st.one_of(st.lists(st.tuples(NAMES, TEXT).map("=".join), max_size=5), ANY),
        "Entrypoint": st.one_of(LISTS, ANY), "Cmd": st.one_of(LISTS, ANY), "WorkingDir": st.one_of(TEXT, ANY),
        "User": st.one_of(TEXT, ANY), "Labels": st.one_of(st.dictionaries(TEXT, TEXT, max_size=4), ANY),
    },
)  # fmt: skip


TCL = """\
foreach c {module-whatis conflict prepend-path append-path family} { proc $c {args} {} }
proc module-info {args} { return 0 }
proc setenv {n v} { puts "$n=$v" }
foreach c {exec open socket source load file} { rename $c {} }
proc file {args} { return 0 }
"""


class Says:
    """A registry that says CONFIG of every image."""

    def __init__(self, config: Any, digest: str) -> None:
        self.config, self.digest = config, digest

    def look_up(self, base: Any) -> Answer:
        body = json.dumps({"os": "linux", "architecture": "amd64", "config": self.config}).encode()
        taken = read_image_config_of(parse_untrusted_json(body, 8 << 20), base.image)
        return Answer(
            "test",
            self.digest,
            {"linux/amd64": self.digest},
            {"linux/amd64": taken},
            {"linux/amd64": 1},
        )


def test_image_configs(tmp_path: Path) -> None:
    import dockerfile

    stack = Catalog([data.find_data_folder("recipes")]).find("miniforge-26.3").stack
    stack = stack.model_copy(
        update={"base": stack.base.model_copy(update={"platforms": ("linux/amd64",)})}
    )
    site = make_site(tmp_path)
    plain = render_stack_files(
        stack,
        resolve_base(stack, Says({"Env": ["PATH=/bin"]}, f"sha256:{'1' * 64}")),
        site,
        "linux/amd64",
    )
    luac = shutil.which("luac5.3") or shutil.which("luac5.4") or shutil.which("luac")
    taken = 0

    def same_lines(files: dict[str, str], path: str) -> bool:
        return files[path].count("\n") == plain[path].count("\n")

    @FEW
    @given(CONFIGS)
    def tried(config: Any) -> None:
        nonlocal taken
        try:
            lock = resolve_base(stack, Says(config, f"sha256:{'1' * 64}"))
            files = render_stack_files(stack, lock, site, "linux/amd64")
        except (
            HpcstackError,
            TypeError,
            ValueError,
        ):  # what the registry client makes a RegistryError of
            return
        taken += 1
        check_definition(stack, lock, "linux/amd64", files["apptainer.def"])
        assert len(dockerfile.parse_string(files["Dockerfile"])) == len(
            dockerfile.parse_string(plain["Dockerfile"])
        )
        assert all(same_lines(files, path) for path in ("apptainer.def", "Dockerfile", "enroot.sh"))
        environment = files["context/hpcstack/etc/environment"]
        assert all("=" in line for line in environment.splitlines())
        assert len(environment.splitlines()) == environment.count("\n")
        scripts = {
            path: text
            for path, text in files.items()
            if text.startswith("#!") and "/smoke/" not in path
        }
        scripts["rc"] = files["context/hpcstack/etc/rc"]
        for text in scripts.values():
            done = subprocess.run(
                ["bash", "-n"], input=text.encode(), capture_output=True, check=False
            )
            assert done.returncode == 0, done.stderr
        if luac:
            subprocess.run([luac, "-p", "-"], input=files["modulefile.lua"].encode(), check=True)
        if shutil.which(
            "tclsh"
        ):  # with commands that do nothing: whatever the image says is text to them
            run = TCL + files["modulefile.tcl"] + "\nModulesHelp\n"
            done = subprocess.run(
                ["tclsh", "-encoding", "utf-8", "/dev/stdin"],
                input=run.encode(),
                capture_output=True,
                check=False,
            )
            assert done.returncode == 0 and b"HPCSTACK_STACK=" in done.stdout, done.stderr
        json.loads(files["context/hpcstack/etc/singularity/labels.json"])
        json.loads(files["context/hpcstack/stack.json"])
        ran = subprocess.run(  # what a container's start would run on a host: nothing
            ["bash", "-c", files["context/hpcstack/etc/singularity/env/10-docker2singularity.sh"] + "\necho done"],
            capture_output=True, check=False, env={"PATH": "/bin:/usr/bin"}, cwd=tmp_path,
        )  # fmt: skip
        assert b"uid=" not in ran.stdout + ran.stderr

    keep_on(tried)
    assert taken, "some are taken, or nothing was tried"


# -- layers

PATHS = st.lists(
    st.sampled_from(["a", "b", "c", "..", ".", "", ".wh.a", ".wh..wh..opq", "x" * 255, "x" * 256, "é", "n\nl", "\x1b", "etc", "dev"]),
    min_size=1, max_size=6,
).map("/".join)  # fmt: skip
MEMBERS = st.one_of(
    st.builds(member, PATHS, st.binary(max_size=2000)),
    st.builds(folder, PATHS),
    st.builds(link, PATHS, PATHS),
    st.builds(hard, PATHS, PATHS),
    st.builds(
        lambda name, xattr: member(name, b"x", pax_headers={"SCHILY.xattr.user.a": xattr, "mtime": "1e400"}),
        PATHS, st.text(alphabet="ab\u00e9", max_size=9),
    ),
    st.builds(lambda name: member(name, type=tarfile.CHRTYPE), PATHS),
    st.builds(lambda name, size: member(name, b"", pax_headers={"GNU.sparse.major": "1", "GNU.sparse.size": size}), PATHS,
              st.sampled_from(["1", str(1 << 50), "-1", "x"])),
)  # fmt: skip


@pytest.mark.squashfs
def test_layers(tmp_path: Path) -> None:
    count = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    @FEW
    @given(
        st.lists(st.lists(MEMBERS, max_size=8), min_size=1, max_size=4),
        st.booleans(),
        st.randoms(use_true_random=False),
    )
    def tried(layers: list[list[Any]], torn: bool, dice: random.Random) -> None:
        nonlocal count
        count += 1
        top = tmp_path / str(count)
        began = processor_seconds()
        try:
            data_of = [tar(one) for one in layers]
        except (ValueError, UnicodeError):
            return
        if torn:
            broken = bytearray(data_of[0])
            for _ in range(dice.randint(1, 20)):
                broken[dice.randrange(len(broken))] = dice.randrange(256)
            data_of[0] = bytes(broken)
        try:
            source = FromLayout(
                parse_reference(f"oci:{layout(top / 'image', [zipped(one) for one in data_of])}"),
                "linux/amd64",
            )
            pack_image(source, top / "out.sqsh", top / "work", "zstd", Runner(), Progress(), lambda _: [], "fuzz",
                       Bounds(unpacked_bytes=1 << 26))  # fmt: skip
        except HpcstackError:
            assert not list(top.glob("*.sqsh*"))
        else:
            assert all(".." not in path.split("/") for path in held(top / "out.sqsh"))
        finally:
            shutil.rmtree(top, ignore_errors=True)
        assert processor_seconds() - began < 20

    keep_on(tried)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10, "KiB"


# -- recipes

KEYS = st.sampled_from(["apiVersion", "name", "version", "summary", "base", "image", "packages", "pip", "apt", "conda", "environment",
                        "labels", "files", "run", "matrix", "extends", "variant", "module", "commands", "launch", "lifecycle", "x"])  # fmt: skip
VALUES = st.recursive(
    st.one_of(
        TEXT,
        st.sampled_from(
            ["hpcstack/v1", "nvcr.io/nvidia/pytorch:24.11-py3", "1", "a-1", "_a", "${stack.name}"]
        ),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=8,
)
GOOD = {
    "apiVersion": "hpcstack/v1",
    "name": "a",
    "version": "1",
    "summary": "s",
    "base": {"image": "docker.io/library/debian:12"},
}


def test_recipes(tmp_path: Path) -> None:
    from datetime import date

    site, count = make_site(tmp_path / "site"), 0

    @FEW
    @given(st.one_of(st.dictionaries(KEYS, VALUES, max_size=6), TEXT), st.booleans())
    def tried(spec: Any, over_good: bool) -> None:
        nonlocal count
        count += 1
        folder_of = tmp_path / str(count)
        folder_of.mkdir()
        text = (
            json.dumps({**GOOD, **spec})
            if over_good and isinstance(spec, dict)
            else spec
            if isinstance(spec, str)
            else json.dumps(spec)
        )
        (folder_of / "a-1.yaml").write_text(text, encoding="utf-8", errors="replace", newline="")
        (folder_of / "_a.yaml").write_text("summary: t\n")
        began = processor_seconds()
        catalog = Catalog([folder_of])
        with contextlib.suppress(HpcstackError):
            for recipe in catalog.read(folder_of / "a-1.yaml"):
                find_warnings(
                    recipe, site, None, catalog.names(), date(2026, 1, 1), needs_lock=True
                )
        assert processor_seconds() - began < 10
        shutil.rmtree(folder_of)

    keep_on(tried)


# -- bundles


def test_bundles(tmp_path: Path) -> None:
    count, good = 0, 0
    parts = [
        "base/x.sqsh",
        "lock/demo-1.lock.json",
        "recipes/demo-1.yaml",
        "packages/a_1_all.deb",
        "packages/../x",
        "x",
        "recipes/.x",
    ]

    @FEW
    @given(
        st.dictionaries(st.sampled_from(parts), st.one_of(st.none(), st.binary(max_size=200)), max_size=3),
        st.dictionaries(st.sampled_from(["format", "stack", "platform", "files"]), VALUES, max_size=1),
        st.dictionaries(st.sampled_from(parts), VALUES, max_size=1),
        st.binary(max_size=64), st.integers(0, 20_000),
    )  # fmt: skip
    def tried(given_files: Any, manifest: Any, named: Any, noise: bytes, at: int) -> None:
        nonlocal count, good
        count += 1
        top = tmp_path / str(count)
        top.mkdir()
        site = make_site(top / "here", build={"cachedir": str(top / "cache")})
        file = make_bundle(top, site, files=given_files, manifest=manifest, named=named)
        content = bytearray(file.read_bytes())
        if noise and at < len(content):
            content[at : at + len(noise)] = noise
            file.write_bytes(content)
        with contextlib.suppress(HpcstackError):
            apply_bundle(file, site, top / "mine", Progress())
            good += 1
            assert (
                not (top / "mine/demo-1.yaml").exists()
                or (top / "mine/demo-1.yaml").read_text() == RECIPE
            )
        written = {path.name for path in (top / "mine").rglob("*")} | {
            path.name for path in site.lock_dir.rglob("*")
        }
        assert written <= {"demo-1.yaml", "demo-1.lock.json"}
        shutil.rmtree(top)

    keep_on(tried)
    assert good, "a whole one is applied"
