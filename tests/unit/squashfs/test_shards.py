"""A folder that was packed in shards has all its names itself, to every reader."""

from __future__ import annotations

import tarfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hpcstack.core.errors import BuildError
from hpcstack.core.process import Runner
from hpcstack.oci.importer import Tar, pack_tars
from hpcstack.oci.pack import PACKERS
from hpcstack.squashfs import shards, table
from hpcstack.squashfs.read import Squashfs
from hpcstack.squashfs.shards import PREFIX, Shards
from hpcstack.squashfs.walk import walk_paths
from support.layers import folder, hard, link, member
from support.splicing import judge, need_overlay, unpacked_by

pytestmark = [pytest.mark.squashfs]
Members = list[tuple[tarfile.TarInfo, bytes]]
NARROW = 1 << 30  # no folder is wider

WIDE_IN_WIDE: Members = [
    folder("wide", 0o750),
    *[member(f"wide/file{number}", b"%d" % number * number) for number in range(40)],
    *[folder(f"wide/folder{number}") for number in range(12)],
    *[member(f"wide/folder11/file{number}", b"same") for number in range(30)],
    folder(f"wide/{PREFIX}000001"),
    member(f"wide/{PREFIX}000001/{PREFIX}000001", b"looks like a shard"),
    folder(f"wide/{PREFIX}000018"),
    member(f"wide/{PREFIX}000018/file", b"looks like one that is joined later"),
    member("wide/implied/file", b"its folder has no member"),
    member("wide/w\udcff", b"no UTF-8"),
    link("wide/link", "folder11/file29"),
    hard("other", "wide/folder11/file29"),
    hard("wide/folder3/other", "wide/file39"),
    hard("wide/another", "other"),
]


def pack(members: Members, output: Path, runner: Runner) -> None:
    tar = Tar("", [(info, [data]) for info, data in members])
    pack_tars([tar], output, output.parent, "zstd", runner)


@pytest.fixture
def shards_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "WIDE", 5)
    monkeypatch.setattr(shards, "SHARD", 3)


@pytest.mark.parametrize("packer", sorted(PACKERS))
def test_what_lies_in_shards_is_where_it_belongs(
    packer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_overlay()
    runner = Runner()
    monkeypatch.setattr(runner, "has", lambda name: name == packer)
    pack(WIDE_IN_WIDE, tmp_path / "narrow.sqsh", runner)
    expected = unpacked_by("unsquashfs", tmp_path / "narrow.sqsh")

    monkeypatch.setattr(shards, "WIDE", 5)
    monkeypatch.setattr(shards, "SHARD", 3)
    pack(WIDE_IN_WIDE, tmp_path / "wide.sqsh", runner)

    found = unpacked_by("unsquashfs", tmp_path / "wide.sqsh")
    if packer == "mksquashfs":  # it gives the root the time of day
        found["."] = expected["."]
    assert found == expected
    if packer == "tar2sqfs":
        judge(tmp_path / "wide.sqsh", expected)
    with Squashfs(tmp_path / "wide.sqsh") as image:
        assert len(set(walk_paths(image))) == len(expected) - 1  # which has the root, too
        above = image.find(b"wide")
        below = image.find(b"wide/folder11")
    assert above
    assert below
    assert below.parent == above.number, "`..` of a folder that was in a shard"


NAMES = st.sampled_from([*"abcdefgh", f"{PREFIX}000001", f"{PREFIX}000002"])


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(paths=st.lists(st.lists(NAMES, min_size=1, max_size=4).map("/".join), unique=True))
@example(paths=[])
def test_no_two_names_meet_in_a_shard(paths: list[str], shards_of_three: None) -> None:
    placed: dict[str, str] = {}
    folders = {path.rpartition("/")[0] for path in paths}
    above = {one for path in folders for one in _list_above(path)}
    everything = Shards()
    for path in [*paths, *sorted(above - set(paths))]:
        placed[path] = everything.place(path, is_folder=path in above)

    assert len(set(placed.values())) == len(placed)
    for path, where in placed.items():
        assert everything.find(path) == where
        names = [name for name in where.split("/") if not _is_shard(name)]
        assert [name for name in path.split("/") if not _is_shard(name)] == names


def _list_above(path: str) -> list[str]:
    """PATH and the folders above it, without the root."""
    names = path.split("/")
    return ["/".join(names[:count]) for count in range(1, len(names) + 1) if path]


def _is_shard(name: str) -> bool:
    return name.startswith(PREFIX)


def test_a_layer_that_is_in_shards_is_packed_the_same_each_time(
    tmp_path: Path, shards_of_three: None
) -> None:
    runner = Runner()
    images = [tmp_path / "one.sqsh", tmp_path / "two.sqsh"]
    for image in images:
        pack(WIDE_IN_WIDE, image, runner)
        time.sleep(1.1)  # another second: no time of day is in it

    assert images[0].read_bytes() == images[1].read_bytes()


def test_tables_that_are_larger_than_any_are_told(
    tmp_path: Path, shards_of_three: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "LARGEST", 10)
    with pytest.raises(BuildError, match="a table is larger than"):
        pack(WIDE_IN_WIDE, tmp_path / "wide.sqsh", Runner())
