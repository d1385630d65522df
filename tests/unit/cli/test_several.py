"""Verbs that take several names or patterns: what a pattern means, and one failure among many."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcstack.cli import main
from hpcstack.cli.lock_ import _choose_adding, _choose_only
from hpcstack.cli.session import Session
from hpcstack.cli.several import choose_built_stacks, choose_published_versions
from hpcstack.core.errors import InputError
from hpcstack.publish.make_release import is_waiting
from hpcstack.resolve.kept_versions import list_added
from support.locks import example_lock
from support.modules import Place

Run = Callable[..., tuple[int, Any]]
MONTHS = ("24.05", "24.11", "25.10")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A site with a testing release of three months, and one of JAX."""
    place = Place(tmp_path / "site", runtime="apptainer")
    site = place.site
    (tmp_path / "site.yaml").write_text(
        f"store: {site.store}\nlock_dir: {site.lock_dir}\nmodule_root: {site.module_root}\n"
    )
    monkeypatch.setenv("HPCSTACK_SITE", str(tmp_path / "site.yaml"))
    monkeypatch.setattr("hpcstack.publish.publisher.find_users", lambda *_, **__: [])
    for name in (*(f"pytorch-{month}" for month in MONTHS), "jax-25.04"):
        publish_image(place, name, tmp_path / name)
    return place


def publish_image(place: Place, name: str, work: Path, more: str = "") -> None:
    """Publish an image that says it is the stack NAME, and has the commands of its module."""
    stack = place.stack(name)
    about = work / f"tree{more}/opt/hpcstack/stack.json"
    about.parent.mkdir(parents=True)
    about.write_text(json.dumps({"stack": name, "more": more}))
    programs = work / f"tree{more}/bin"
    programs.mkdir()
    for command in stack.module.commands:
        (programs / command).touch(0o755)

    image = work / f"image{more}.sqsh"
    argv = ["mksquashfs", str(work / f"tree{more}"), str(image), "-quiet", "-no-progress"]
    subprocess.run(argv, check=True)
    place.publish(name, content=image.read_bytes(), stack=stack)


@pytest.fixture
def run(place: Place, capsys: pytest.CaptureFixture[str]) -> Run:
    """`hpcstack WORDS... --json`: (status, the document)."""

    def call(*words: str) -> tuple[int, Any]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*words, "--json"])
        said = capsys.readouterr()
        assert said.out, said.err
        return int(ended.value.code or 0), json.loads(said.out)

    return call


def test_a_pattern_matches_both_spellings(place: Place) -> None:
    session = Session("", ())
    for pattern in ("pytorch/24.*", "pytorch-24.*", "pytorch?24.[01]*"):
        found = choose_published_versions(session, [pattern], is_waiting, "waits")
        assert found == ["pytorch/24.05", "pytorch/24.11"]

    both = choose_published_versions(
        session, ["jax/25.04", "*/25.10", "jax/*"], is_waiting, "waits"
    )
    assert both == ["jax/25.04", "pytorch/25.10"]
    with pytest.raises(InputError, match=r"nothing that matches 'nemo/\*' waits"):
        choose_published_versions(session, ["nemo/*"], is_waiting, "waits")


def test_of_a_pattern_what_is_built_counts(place: Place) -> None:
    session = Session("", ())
    assert choose_built_stacks(session, ["pytorch-24.*"]) == ["pytorch-24.05", "pytorch-24.11"]
    assert choose_built_stacks(session, ["pytorch-26.07"]) == ["pytorch-26.07"]
    with pytest.raises(InputError, match="nothing is built of nemo-"):
        choose_built_stacks(session, ["nemo-*"])


def test_promote_takes_what_waits(place: Place, run: Run, tmp_path: Path) -> None:
    status, rows = run("promote", "pytorch/24.*", "--override", "no node is free")
    assert status == 0, rows
    assert [row["release"] for row in rows] == ["pytorch/24.05-r2", "pytorch/24.11-r2"]

    # What is promoted waits no longer, and what was withdrawn is not brought back by a pattern.
    ledger = place.tree.ledger("pytorch")
    assert [one for one in MONTHS if is_waiting(ledger, one)] == ["25.10"]
    publish_image(place, "pytorch-24.11", tmp_path, more="second")
    assert run("promote", "pytorch/24.11", "--override", "why")[0] == 0
    assert run("rollback", "pytorch/24.11", "--reason", "wrong")[0] == 0
    assert not is_waiting(place.tree.ledger("pytorch"), "24.11")


def test_a_failure_does_not_stop_the_rest(run: Run) -> None:
    status, rows = run("promote", "pytorch/24.05", "nothing/1", "jax/*")
    assert status == 1, rows
    assert [row["version"] for row in rows] == ["pytorch/24.05", "nothing/1", "jax/25.04"]
    assert [row["status"] for row in rows] == [1, 2, 1]
    assert "no report of this image" in rows[0]["said"]


def test_retire_takes_what_can_be_loaded(place: Place, run: Run) -> None:
    status, rows = run("retire", "pytorch-24.*", "--now", "--reason", "CUDA 12 ends", "--dry-run")
    assert (status, [row["version"] for row in rows]) == (0, ["pytorch/24.05", "pytorch/24.11"])
    assert "24.05" in place.tree.ledger("pytorch").aliases, "a dry run changes nothing"

    assert run("retire", "pytorch-24.*", "--now", "--reason", "CUDA 12 ends")[0] == 0
    assert list(place.tree.ledger("pytorch").aliases) == ["25.10"]
    status, rows = run("retire", "pytorch-24.*", "--cancel")
    assert (status, len(rows)) == (0, 2)
    assert sorted(place.tree.ledger("pytorch").aliases) == sorted(MONTHS)


def test_verify_takes_what_can_be_loaded(place: Place, run: Run) -> None:
    status, rows = run("verify", "*/25.*")
    assert (status, [row.get("good") for row in rows]) == (0, [True, True]), rows

    artifact = place.store.newest("jax-25.04")
    assert artifact
    artifact.image.chmod(0o600)
    artifact.image.write_bytes(b"jay")
    status, rows = run("verify", "*/25.*")
    assert status != 0
    assert [row["status"] == 0 for row in rows] == [False, True]


def test_a_pattern_of_locks_means_those_that_add_the_package(place: Place, run: Run) -> None:
    """A security fix over all stacks: those that have nothing of it are not failures."""
    stack = place.stack("pytorch-24.11")
    place.site.lock_dir.mkdir(parents=True, exist_ok=True)
    lock = example_lock(stack)
    (place.site.lock_dir / "pytorch-24.11.lock.json").write_text(lock.file_text())
    added = sorted(list_added(lock))
    session = Session("", ())
    stacks = [f"pytorch-{month}" for month in MONTHS]
    assert _choose_adding(session, stacks, (added[0], "no-such")) == ["pytorch-24.11"]
    assert _choose_only(session, "pytorch-24.11", (added[0], "no-such")) == (added[0],)
    with pytest.raises(InputError, match="no lock of these stacks adds no-such"):
        _choose_adding(session, stacks, ("no-such",))
