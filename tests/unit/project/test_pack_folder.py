"""A folder becomes one squashfs file, by way of shards that a killed pack leaves for the next one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcstack.core.errors import BuildError, InputError
from hpcstack.core.process import Runner
from hpcstack.core.progress import Progress
from hpcstack.project.pack_folder import list_entries, pack_folder, split_shards

pytestmark = pytest.mark.squashfs
KB = 1000


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Data as people have it: nested folders, links, an empty folder, odd names, a private file."""
    top = tmp_path / "data"
    for number in range(12):
        folder = top / f"class{number % 3}" / "images"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:02}.bin").write_bytes(os.urandom(100 * KB))
    (top / "empty").mkdir()
    (top / "link").symlink_to("class0/images/00.bin")
    (top / "-name with blanks\nand a line").write_text("odd")
    (top / "ünïcode").write_text("name")
    (top / os.fsdecode(b"no-\xff-unicode")).write_text("name")
    private = top / "private"
    private.write_text("mine")
    private.chmod(0o600)
    return top


def unpack(image: Path) -> Path:
    target = image.with_suffix(".unpacked")
    argv = ["unsquashfs", "-quiet", "-no-progress", "-d", str(target), str(image)]
    subprocess.run(argv, check=True, capture_output=True)
    return target


def describe(top: Path) -> dict[str, tuple[str, bytes]]:
    out = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        if path.is_symlink():
            out[name] = ("link", os.fsencode(path.readlink()))
        elif path.is_dir():
            out[name] = ("folder", b"")
        else:
            out[name] = (f"{int(path.stat().st_mtime)}", path.read_bytes())
    return out


@pytest.mark.parametrize("shard", [10_000 * KB, 250 * KB, 1])
@pytest.mark.parametrize("compression", ["zstd", "gzip"])
def test_what_is_packed_is_what_was_there(source: Path, shard: int, compression: str) -> None:
    output = source.with_name("data.sqsh")
    done = pack_folder(
        source, output, Runner(), Progress(), compression=compression, shard_size=shard
    )
    unpacked = unpack(output)
    assert describe(unpacked) == describe(source)
    assert (unpacked / "private").stat().st_mode & 0o777 == 0o644  # whoever may read the file
    assert done.size == output.stat().st_size
    assert done.bytes == sum(one.size for one in list_entries(source))
    assert [path.name for path in source.parent.glob(".*")] == []


class Ends(Progress):
    """Raises when so much is packed, as Ctrl-C would."""

    def __init__(self, most: int) -> None:
        self.most = most

    def amount(self, what: str, done: int, total: int) -> None:
        if done >= self.most:
            raise KeyboardInterrupt


def test_a_pack_that_was_interrupted_goes_on(source: Path) -> None:
    output = source.with_name("data.sqsh")
    with pytest.raises(KeyboardInterrupt):
        pack_folder(source, output, Runner(), Ends(700 * KB), shard_size=250 * KB)
    assert not output.exists()
    done = pack_folder(source, output, Runner(), Progress(), shard_size=250 * KB)
    assert done.reused == 3
    assert describe(unpack(output)) == describe(source)


def test_what_has_changed_since_is_packed_anew(source: Path) -> None:
    output = source.with_name("data.sqsh")
    with pytest.raises(KeyboardInterrupt):
        pack_folder(source, output, Runner(), Ends(700 * KB), shard_size=250 * KB)
    first = source / "class0/images/00.bin"
    first.write_bytes(b"new")
    done = pack_folder(source, output, Runner(), Progress(), shard_size=250 * KB)
    assert done.reused < 3
    assert (unpack(output) / "class0/images/00.bin").read_bytes() == b"new"


def break_nothing(source: Path) -> Path:
    return source.with_name("data.sqsh")


def ask_for_a_file(source: Path) -> Path:
    (source.parent / "data.sqsh").touch()
    return source.parent / "data.sqsh"


def ask_for_a_folder(source: Path) -> Path:
    return source.parent


def ask_for_itself(source: Path) -> Path:
    return source / "data.sqsh"


@pytest.mark.parametrize(
    ("choose", "says"),
    [
        (ask_for_a_file, "exists"),
        (ask_for_a_folder, "is a folder"),
        (ask_for_itself, "would lie in the folder"),
    ],
)
def test_it_is_refused(source: Path, choose: Callable[[Path], Path], says: str) -> None:
    with pytest.raises(InputError, match=says):
        pack_folder(source, choose(source), Runner(), Progress())


@pytest.mark.parametrize("what", ["missing", "empty", "file"])
def test_no_folder_of_data_is_refused(tmp_path: Path, what: str) -> None:
    source = tmp_path / what
    if what == "empty":
        source.mkdir()
    if what == "file":
        source.touch()
    with pytest.raises(InputError) as refused:
        pack_folder(source, tmp_path / "x.sqsh", Runner(), Progress())
    assert refused.value.hint
    assert not (tmp_path / "x.sqsh").exists()


def test_what_cannot_be_read_is_named(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything: what the kernel says to others is put in its place."""
    monkeypatch.setattr(os, "access", lambda path, _: not str(path).endswith("01.bin"))
    with pytest.raises(InputError, match="class1/images/01.bin"):
        pack_folder(source, break_nothing(source), Runner(), Progress())


def test_a_file_that_goes_away_is_no_half_of_a_shard(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = list(list_entries(source))
    (source / "ünïcode").unlink()
    monkeypatch.setattr("hpcstack.project.pack_folder.list_entries", lambda _: iter(entries))
    with pytest.raises(BuildError, match="ünïcode|failed"):
        pack_folder(source, break_nothing(source), Runner(), Progress())
    assert not break_nothing(source).exists()


def test_shards_have_all_in_their_order(source: Path) -> None:
    entries = list(list_entries(source))
    shards = list(split_shards(entries, 250 * KB))
    assert [one for shard in shards for one in shard.entries] == entries
    assert all(shard.size <= 250 * KB for shard in shards)
    assert len({shard.name for shard in shards}) == len(shards)
