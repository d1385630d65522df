"""The module tree: what is said where it cannot be written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hpcstack.core.errors import StoreError
from hpcstack.releases.tree import Tree


@pytest.mark.parametrize(
    ("number", "tip"),
    [
        (errno.ENOSPC, "make room on the disk of"),
        (errno.EDQUOT, "make room on the disk of"),
        (errno.EACCES, "it must be writable by whoever publishes"),
        (errno.EROFS, "it must be writable by whoever publishes"),
    ],
)
def test_a_full_disk_is_not_a_matter_of_rights(tmp_path: Path, number: int, tip: str) -> None:
    """admin 22-32: "must be writable" on a full disk."""
    with pytest.raises(StoreError) as refused, Tree(tmp_path).acting():
        raise OSError(number, os.strerror(number), str(tmp_path / "state"))
    assert refused.value.hint.startswith(tip)
    assert os.strerror(number) in refused.value.message
