"""What is tried of a store's filesystem. Real shared ones are in tests/integration/test_filesystems.py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hpcstack.core.process import Completed, Runner
from hpcstack.diagnose.filesystem import look_at_filesystems, try_filesystem


def test_this_machines_own_keeps_all(tmp_path: Path) -> None:
    finding = try_filesystem("store", tmp_path, "here", Runner())
    assert finding.status == "OK", finding.found
    assert list(tmp_path.iterdir()) == []


def refuse(*_: Any, **__: Any) -> Any:
    raise PermissionError(1, "Operation not permitted")


@pytest.mark.parametrize(
    ("module", "name", "what"),
    [
        (os, "link", "hard links (Operation not permitted): leases are made by them"),
        (os, "fsync", "fsync (Operation not permitted)"),
        (os, "utime", "times (Operation not permitted)"),
        (Path, "symlink_to", "replacing a symbolic link"),
        (Path, "chmod", "modes"),
        (os, "pwrite", "files beyond 4 GiB"),
    ],
)
def test_what_is_not_kept_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, what: str
) -> None:
    """A filesystem that refuses, as FAT does with links: its own words are kept."""
    monkeypatch.setattr(module, name, refuse)
    finding = try_filesystem("store", tmp_path, "here", Runner())
    assert finding.status == "FAIL"
    assert what in finding.found
    assert finding.page == "choose-a-filesystem"
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_a_link_that_is_another_file_is_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As sshfs shows them: link(2) succeeds, and each name is a file with one name."""
    import shutil

    def copy(source: Path, target: Path, **_: Any) -> None:
        if Path(target).exists():
            raise FileExistsError(17, "File exists")
        shutil.copy(source, target)

    monkeypatch.setattr(os, "link", copy)
    finding = try_filesystem("store", tmp_path, "here", Runner())
    assert "hard links (a second name is another file)" in finding.found


def test_a_lock_that_locks_nobody_out_is_none(tmp_path: Path) -> None:
    class Lenient(Runner):
        def output(self, argv: Any, **_: Any) -> Completed:
            return Completed(tuple(argv), 0)

    finding = try_filesystem("store", tmp_path, "here", Lenient())
    assert "locks of files (a second process got the lock)" in finding.found


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_what_is_not_ours_to_write_is_not_tried(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert try_filesystem("store", tmp_path, "here", Runner()).status == "SKIP"


def test_a_folder_that_somebody_put_in_place_of_ours_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member of the group may rename our folder, and put a folder or a link of theirs there."""
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o755)
    (theirs / "kept").write_text("kept")
    store = tmp_path / "store"
    store.mkdir()

    def make_theirs(**_: Any) -> str:
        theirs.rename(store / "swapped")
        return str(store / "swapped")

    monkeypatch.setattr("tempfile.mkdtemp", make_theirs)
    assert try_filesystem("store", store, "here", Runner()).status == "SKIP"
    assert [path.name for path in (store / "swapped").iterdir()] == ["kept"]


def test_two_places_on_one_filesystem_are_tried_once(tmp_path: Path) -> None:
    places = {"store": tmp_path / "a", "modules": tmp_path / "b", "gone": tmp_path / "none"}
    for path in list(places.values())[:2]:
        path.mkdir()
    assert len(list(look_at_filesystems(places, "here", Runner()))) == 1
