"""The smaller findings of the second round: what a recipe, a name, a layer or a job's own words may not do."""

from __future__ import annotations

import json
import tarfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hpcstack.core.errors import ProblemsError, StoreError
from hpcstack.core.process import Runner
from hpcstack.core.yaml import parse
from hpcstack.oci.flatten import ClimbsOut, entry_of
from hpcstack.recipe.model import IMAGE
from hpcstack.releases.lookup import find_released
from hpcstack.store.signing import why_untrusted
from support.modules import Place


@pytest.mark.parametrize("text", ["%TAG ! x\n" * 71_000, "a: 1\n%YAML 1.1\n"], ids=["many", "one"])
def test_directives_are_refused_at_once(text: str) -> None:
    """N15: 71,000 of them took seven seconds."""
    began = time.monotonic()
    with pytest.raises(ProblemsError) as refused:
        parse(text, "x.yaml")
    assert "a line that begins with % is a directive" in str(refused.value)
    assert time.monotonic() - began < 1


def test_of_many_unknown_keys_fifty_are_told(tmp_path: Path) -> None:
    """N15: 45,000 unknown keys took four seconds."""
    from hpcstack.recipe.catalog import Catalog

    head = "apiVersion: hpcstack/v1\nname: many\nversion: '1'\nsummary: x\nbase: {image: nvcr.io/a/b:1}\n"
    (tmp_path / "many-1.yaml").write_text(head + "".join(f"k{number}: 1\n" for number in range(2000)))
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


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.REGTYPE])
@pytest.mark.parametrize("name", ["", ".", "./", "/"])
def test_a_layers_root_is_a_folder(kind: bytes, name: str) -> None:
    """N21: exit 4, and "is the disk damaged?"."""
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, "etc"
    with pytest.raises(ClimbsOut, match="in the place of its root"):
        entry_of(member)


def test_following_a_log_commands_no_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N24: `logs -f` handed a job's raw bytes to the terminal."""
    from hpcstack.cli.logs_ import _follow

    class Tail:
        def read(self, argv: list[str]) -> object:
            assert argv[:2] == ["tail", "-n"]
            return (tmp_path / "log").open("rb", buffering=0)

    (tmp_path / "log").write_bytes(b"one\x1b]0;title\x07\ntwo\n")
    runner = CliRunner()
    with runner.isolation() as (out, *_):
        _follow([tmp_path / "log"], 50, Tail())  # type: ignore[arg-type]
        said = out.getvalue().decode()
    assert said == "one\ufffd]0;title\ufffd\ntwo\n"


@pytest.mark.parametrize("lacks", ["stack", "lock_sha256", "sha256"])
def test_a_record_that_names_nothing_passes_with_no_signature(tmp_path: Path, lacks: str) -> None:
    """N11: an empty stack or lock in artifact.json was "not compared", so another image's signature passed."""
    place = Place(tmp_path)
    artifact = replace(place.artifact(place.stack()), **dict[str, Any]({lacks: ""}))
    assert why_untrusted(artifact, ("ssh-ed25519 AAAA",), Runner()) == f"its record names no {lacks.replace('_', ' ')}"


def test_an_image_of_another_stack_is_not_the_release(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.publish()
    (record,) = (place.store.top / "images").glob("*/artifact.json")
    document = json.loads(record.read_text())
    record.chmod(0o644)
    for stack in ("pytorch-6.66", ""):
        record.write_text(json.dumps({**document, "stack": stack}))
        with pytest.raises(StoreError, match="says that it is one of"):
            find_released("pytorch-24.11", place.site, place.store)
