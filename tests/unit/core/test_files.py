"""Files are written whole, and where they were meant."""

from __future__ import annotations

from pathlib import Path

import pytest

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
