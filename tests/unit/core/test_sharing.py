"""Who shares what is written, and whose records are believed. What is handed over is in
tests/hostile/test_shared_folders.py.
"""

from __future__ import annotations

import grp
import os
from pathlib import Path

import pytest

from conftest import make_site
from hpcstack.core.files import put_in_place, write_text, writing_below
from hpcstack.core.sharing import ALONE, Sharing, find_sharing
from hpcstack.store.store import open_store

OURS = Sharing(group=os.getegid())


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.mark.parametrize(
    ("plain", "widened"),
    [(0o644, 0o664), (0o755, 0o775), (0o640, 0o660), (0o600, 0o600), (0o700, 0o700)],
)
def test_the_group_may_do_what_its_owner_may(plain: int, widened: int) -> None:
    assert OURS.widen_mode(plain) == widened
    assert ALONE.widen_mode(plain) == plain


def test_nothing_is_shared_unless_somebody_says_so(tmp_path: Path) -> None:
    with writing_below(tmp_path / "top", "nothing"):
        write_text(tmp_path / "top/file", "x")
    assert mode_of(tmp_path / "top/file") == 0o644
    assert mode_of(tmp_path / "top") == 0o755


def test_what_is_written_below_a_groups_folder_is_the_groups(tmp_path: Path) -> None:
    with writing_below(tmp_path / "top", "nothing", OURS):
        write_text(tmp_path / "top/file", "x", sharing=OURS)
        (tmp_path / "top/part").write_text("x")
        put_in_place(tmp_path / "top/part", tmp_path / "top/whole", OURS)
    assert mode_of(tmp_path / "top") == 0o2775
    assert mode_of(tmp_path / "top/file") == 0o664
    assert mode_of(tmp_path / "top/whole") == 0o664


def test_two_sites_in_one_process_share_each_with_its_own(tmp_path: Path) -> None:
    """Whoever uses hpcstack as a library gets the rights that the command line gives."""
    name = grp.getgrgid(os.getegid()).gr_name
    shared = open_store(make_site(tmp_path / "shared", group=name))
    alone = open_store(make_site(tmp_path / "alone"))
    for store in (shared, alone):
        store.point("pytorch-24.11", "a" * 24)
    assert mode_of(shared.top / "stacks/pytorch-24.11") == 0o664
    assert mode_of(alone.top / "stacks/pytorch-24.11") == 0o644


def test_publishers_are_names_or_numbers() -> None:
    site = find_sharing("", ("root", "4747", "a-name-that-nobody-has"))
    assert site.publishers == frozenset({0, 4747})
    assert site.names_publishers
    assert site.is_publisher(4747)
    assert not site.is_publisher(4748)


def test_without_publishers_everybody_is_believed() -> None:
    assert not ALONE.names_publishers
    assert ALONE.is_publisher(4747)
    assert ALONE.may_publish
