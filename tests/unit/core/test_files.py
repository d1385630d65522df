"""Files are written whole, and where they were meant."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from hpcstack.core import descriptors
from hpcstack.core.errors import StoreError
from hpcstack.core.files import write_text, write_tree


def test_files_are_written_by_rename_with_their_mode(tmp_path: Path) -> None:
    write_text(tmp_path / "a/b", "x")
    write_tree(tmp_path, {"run.sh": "#!/bin/sh\n", "c/d": "y"})
    assert [oct((tmp_path / name).stat().st_mode & 0o777) for name in ("a/b", "run.sh", "c/d")] == [
        "0o644",
        "0o755",
        "0o644",
    ]
    assert not list(tmp_path.rglob("*.part"))


def test_a_tree_never_leads_out(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="leads out"):
        write_tree(tmp_path / "in", {"../out": "x"})


def test_a_folder_that_another_machine_has_just_replaced_is_looked_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As clients of GlusterFS answer: ESTALE, until they have forgotten what they knew."""
    answers = [errno.ESTALE, errno.ESTALE]
    really_open = os.open

    def open_late(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if path == "." and answers:
            raise OSError(answers.pop(), "Stale file handle", ".")
        return really_open(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", open_late)
    monkeypatch.setattr(descriptors, "STALE_PAUSES_S", (0.0, 0.0, 0.0))
    os.close(descriptors.open_folder(tmp_path))
    assert answers == []

    answers += [errno.ESTALE] * 9
    with pytest.raises(OSError, match="Stale"):
        descriptors.open_folder(tmp_path)
    assert len(answers) == 5, "it gives up"


def test_a_folder_that_another_machine_has_just_made_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mkdir(2) says that it exists, and a client that had looked before says that it does not."""
    wanted = tmp_path / "new"
    missing = [True, True, True]
    really_once = descriptors._open_folder_once
    really_mkdir = os.mkdir

    def open_late(path: Path) -> int:
        if path == wanted and missing:
            missing.pop()
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return really_once(path)

    def made_by_another(path: Any, *rest: Any, **more: Any) -> None:
        really_mkdir(path, *rest, **more)
        raise FileExistsError(errno.EEXIST, "File exists", str(path))

    monkeypatch.setattr(descriptors, "_open_folder_once", open_late)
    monkeypatch.setattr(descriptors, "STALE_PAUSES_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(os, "mkdir", made_by_another)
    descriptors.make_folder(wanted)
    assert missing == []
    assert wanted.is_dir()
