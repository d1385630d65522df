"""A spliced image is what the overlay of its base and layers is, to every reader."""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import random
import struct
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hpcstack.core.mounts import find_filesystem
from hpcstack.squashfs import copy, kept
from hpcstack.squashfs.codec import Unreadable
from hpcstack.squashfs.inode import NONE, DirectoryEntry, Inode
from hpcstack.squashfs.read import Squashfs, Superblock
from hpcstack.squashfs.splice import TooMuchDead, belongs_to_root, read_splice, splice_image
from hpcstack.squashfs.tree import Merged
from hpcstack.squashfs.write import Writer
from support.splicing import PACKED, TIME, Case, judge, mounted_by, need_overlay

pytestmark = [pytest.mark.squashfs]
EXAMPLES = int(os.environ.get("HPCSTACK_EXAMPLES", "4"))


@pytest.fixture(autouse=True, scope="module")
def _overlay() -> None:
    need_overlay()


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 1 << 30), packed=st.sampled_from(sorted(PACKED)), size=st.integers(0, 250),
    changes=st.lists(st.integers(1, 80), min_size=1, max_size=3),
)  # fmt: skip
@example(seed=1, packed="zstd", size=200, changes=[80, 60])
def test_any_base_and_any_changes(seed: int, packed: str, size: int, changes: list[int]) -> None:
    with tempfile.TemporaryDirectory() as name:
        case = Case(Path(name), PACKED[packed])
        case.make_base(seed, size)
        for number, count in enumerate(changes, 1):
            case.change_by(seed + number, count)
        result = case.splice()
        output = case.folder / "out.sqsh"
        assert "unsquashfs" in judge(output, case.expected)
        assert (result.sha256, result.size) == (
            hashlib.sha256(output.read_bytes()).hexdigest(),
            output.stat().st_size,
        )
        assert case.splice("again.sqsh") == result, "the same base and layers give the same bytes"


@pytest.fixture
def case(tmp_path: Path) -> Case:
    case = Case(tmp_path)
    case.make_base(3, 150)
    return case


@pytest.mark.soak(
    "what is packed otherwise is read by one piece of code",
    but=lambda packed: packed in ("gzip", "zstd", "small blocks", "nothing compressed"),
)
@pytest.mark.parametrize("packed", sorted(PACKED))
def test_every_way_to_pack_a_base(tmp_path: Path, packed: str) -> None:
    case = Case(tmp_path, PACKED[packed])
    case.make_base(3, 150)
    case.change_by(4, 60)
    case.splice()
    judge(tmp_path / "out.sqsh", case.expected)


def test_a_base_that_tar2sqfs_packed(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.make_base(3, 150)
    tar = subprocess.run(
        ["tar", "-C", tmp_path / "base", "--sort=name", "--xattrs", "-c", "."],
        capture_output=True,
        check=True,
    )
    subprocess.run(
        ["tar2sqfs", "-q", "-f", "-c", "zstd", tmp_path / "base.sqsh"], input=tar.stdout, check=True
    )
    case.change_by(4, 60)
    case.splice()
    judge(tmp_path / "out.sqsh", case.expected)


def test_what_overlays_mark(case: Case) -> None:
    """Deletions, folders made anew over old ones, a folder for a file and the other way round,
    nothing at all.
    """
    (case.folder / "base/gone/deep").mkdir(parents=True)
    (case.folder / "base/gone/deep/file").write_text("x")
    (case.folder / "base/anew").mkdir()
    (case.folder / "base/anew/old").write_text("x")
    (case.folder / "base/file-to-folder").write_text("x")
    (case.folder / "base/folder-to-file").mkdir()
    (case.folder / "base/folder-to-file/old").write_text("x")
    case.pack("base", "base.sqsh")
    case.change("rm -r gone anew; mkdir anew; echo new >anew/new; rm file-to-folder; mkdir file-to-folder; "
                "rm -r folder-to-file; echo new >folder-to-file")  # fmt: skip
    case.change("rm -r anew; mkdir -p anew gone; ln -s /nowhere gone/deep; touch -d @5 gone anew .")
    case.change("true")
    case.splice()
    judge(case.folder / "out.sqsh", case.expected)
    assert case.expected["anew"]
    assert "anew/old" not in case.expected
    assert "anew/new" not in case.expected


def test_hard_links(case: Case) -> None:
    """New ones, one of the base's that loses a name, one that gets another content: the other names
    stay as they are.
    """
    for name in ("one", "two", "three"):
        (case.folder / f"base/{name}").write_text(name * 1000)
    for source, name in (("one", "one-b"), ("two", "two-b"), ("three", "three-b")):
        os.link(case.folder / f"base/{source}", case.folder / f"base/{name}")
    case.pack("base", "base.sqsh")
    case.change(
        "rm one-b; echo more >>two-b; echo n >new; ln new new-b; mkdir -p sub; ln new sub/new-c"
    )
    case.change("rm new")
    case.splice()
    judge(case.folder / "out.sqsh", case.expected)
    with Squashfs(case.folder / "out.sqsh") as image:
        kept = image.find(b"new-b")
        assert kept
        assert kept.links == 2
        assert kept == image.find(b"sub/new-c")


def test_capabilities_and_attributes(case: Case) -> None:
    (case.folder / "base/tool").write_text("#!/bin/sh\n")
    (case.folder / "base/tool").chmod(0o755)
    case.pack("base", "base.sqsh")
    case.change("setcap cap_net_raw+ep tool; setfattr -n user.a -v b tool 2>/dev/null || "
                "python3 -c 'import os; os.setxattr(\"tool\", \"user.a\", b\"b\")'; mkdir -p d; touch d/x")  # fmt: skip
    case.splice()
    with Squashfs(case.folder / "out.sqsh") as image:
        found = image.find(b"tool")
        assert found
        xattrs = dict(image.xattrs(found))
    assert xattrs[b"user.a"] == b"b"
    assert xattrs[b"security.capability"][:4] == struct.pack("<I", 0x02000001)
    assert not [name for name in xattrs if b"overlay" in name]


def test_a_folder_of_many_names_is_found_in_by_its_index(case: Case) -> None:
    names = [f"n{number:05}-{'y' * (number % 90)}" for number in range(3000)]
    (case.folder / "base/many").mkdir()
    for name in names[::2]:
        (case.folder / "base/many" / name).write_text(name)
    case.pack("base", "base.sqsh")
    (case.folder / "names").write_text("".join(f"{name}\n" for name in names[1::2]))
    case.change(
        f"cd many; while read -r name; do echo $name >$name; done <{case.folder}/names; rm n00000*"
    )
    case.splice()
    judge(case.folder / "out.sqsh", case.expected)
    with Squashfs(case.folder / "out.sqsh") as image:
        folder = image.find(b"many")
        assert folder
        assert folder.size > 1 << 17
        assert len(image.listing(folder)) == len(names) - 1


@pytest.mark.soak(
    "five gigabytes are read",
    kept="tests/unit/squashfs/test_splice.py::test_tables_and_data_beyond_32_bits",
)
def test_sparse_and_large_files(case: Case) -> None:
    case.change("truncate -s 5G sparse; printf end | dd of=sparse bs=1 seek=5000000000 conv=notrunc status=none; "
                "head -c 3000000 /dev/urandom >large", look=False)  # fmt: skip
    case.splice()
    with Squashfs(case.folder / "out.sqsh") as image:
        found = image.find(b"sparse")
        assert found
        assert found.size == 5 << 30
        assert found.sparse > 4 << 30
    done = subprocess.run(
        ["unsquashfs", "-cat", case.folder / "out.sqsh", "large"], capture_output=True, check=True
    )
    assert (
        hashlib.sha256(done.stdout).hexdigest()
        == hashlib.sha256((case.folder / "upper-0/large").read_bytes()).hexdigest()
    )


@pytest.mark.parametrize("gigabytes", [5, 17])
def test_tables_and_data_beyond_32_bits(
    case: Case, gigabytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A base whose tables begin behind so many bytes: new data need 64 bits to be named. All of
    them are copied and read in ci/soak; here they are a hole, which is left out.
    """
    if EXAMPLES < 100:
        monkeypatch.setattr("hpcstack.squashfs.kept.copy_bytes", copy_data)
        monkeypatch.setattr("hpcstack.squashfs.kept.LOCAL", ())
        monkeypatch.setattr("hpcstack.squashfs.kept.Keeping._sum", lambda _: None)
    moved = move_tables(case.folder / "base.sqsh", gigabytes << 30)
    moved.replace(case.folder / "base.sqsh")
    case.change_by(4, 60)
    output = case.folder / "out.sqsh"
    splice_image(case.folder / "base.sqsh", case.layers, output, TIME, always=True)
    assert output.stat().st_size > gigabytes << 30
    judge(output, case.expected)
    output.unlink()


def copy_data(source: int, start: int, target: int, at: int, size: int) -> str:
    """As copy_bytes does it, but for holes."""
    end, here = start + size, start
    while here < end:
        try:
            here = os.lseek(source, here, os.SEEK_DATA)
        except OSError:
            break
        hole = min(end, os.lseek(source, here, os.SEEK_HOLE))
        if here < end:
            copy.copy_bytes(source, here, target, at + here - start, hole - here)
        here = hole
    return "kernel"


def move_tables(image: Path, far: int) -> Path:
    """IMAGE with its tables FAR behind its data: a sparse file."""
    data = image.read_bytes()
    about = Superblock(*Superblock.FORMAT.unpack(data[: Superblock.FORMAT.size]))
    end = about.inode_table
    tables = bytearray(data[end : about.used])

    def shift(at: int, count: int) -> None:
        for place in range(at - end, at - end + 8 * count, 8):
            tables[place : place + 8] = (
                int.from_bytes(tables[place : place + 8], "little") + far
            ).to_bytes(8, "little")

    with Squashfs(image) as read:
        sets = len(read.attributes.sets)
    shift(about.fragment_table, -(-about.fragments * 16 // 8192))
    shift(about.export_table, -(-about.inodes * 8 // 8192))
    shift(about.id_table, 1)
    if sets:
        shift(about.xattr_table, 1)
        shift(about.xattr_table + 16, -(-sets * 16 // 8192))
        about.xattr_table += far
    for name in (
        "used",
        "id_table",
        "inode_table",
        "folder_table",
        "fragment_table",
        "export_table",
    ):
        setattr(about, name, getattr(about, name) + far)
    out = image.with_name("moved.sqsh")
    with out.open("wb") as file:
        file.write(about.pack() + data[Superblock.FORMAT.size : end])
        file.seek(end + far)
        file.write(tables)
        file.write(bytes(-file.tell() % 4096))
    return out


def test_spliced_again_and_again(case: Case) -> None:
    """A chain: the image of one splice is the base of the next.

    Beyond a bound that is refused, unless it is wanted.
    """
    for number in range(10):
        case.change_by(number, 10)
        output = case.folder / f"chain-{number}.sqsh"
        base = (
            case.folder / "base.sqsh" if number == 0 else case.folder / f"chain-{number - 1}.sqsh"
        )
        splice_image(base, case.layers[-1:], output, TIME, always=True)
    judge(output, case.expected)
    about = read_splice(output)
    assert about is not None
    assert about.depth == 10
    with pytest.raises(TooMuchDead, match="11 times"):
        splice_image(output, case.layers[-1:], case.folder / "more.sqsh", TIME)


def test_dead_bytes_are_counted_and_bounded(case: Case) -> None:
    data = random.Random(1).randbytes(3_000_000)
    (case.folder / "base/large").write_bytes(data)
    case.pack("base", "base.sqsh")
    case.change("rm large")
    assert 2_800_000 < case.splice().about.dead < 3_100_000
    with pytest.raises(TooMuchDead, match="would be no file's"):
        splice_image(case.folder / "base.sqsh", case.layers, case.folder / "no.sqsh", TIME)
    assert not (case.folder / "no.sqsh").exists()


def test_what_goes_from_a_folder_that_was_touched_before_is_dead_too(case: Case) -> None:
    (case.folder / "base/big").mkdir()
    (case.folder / "base/big/large").write_bytes(random.Random(1).randbytes(3_000_000))
    case.pack("base", "base.sqsh")
    case.change("echo x >big/new")
    case.change("rm -r big")
    assert 2_800_000 < case.splice().about.dead < 3_100_000


def test_a_base_that_cannot_be_read_to_its_end_gives_no_sum(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.change_by(4, 20)

    def refused(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", refused)
    with pytest.raises(OSError, match="Input/output"):
        case.splice()


def test_a_maze_of_folders_is_refused(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with two names: 40 of those in one another would be walked for ever."""
    (case.folder / "base/gone/below").mkdir(parents=True)
    case.pack("base", "base.sqsh")
    case.change("rm -r gone", look=False)
    whole = Squashfs.listing

    def doubled(image: Squashfs, folder: Inode) -> dict[bytes, DirectoryEntry]:
        found = whole(image, folder)
        return {**found, b"again": found[b"below"]} if b"below" in found else found

    monkeypatch.setattr(Squashfs, "listing", doubled)
    with pytest.raises(Unreadable, match="two names"):
        case.splice()


@pytest.mark.parametrize(
    "filling",
    ['{"depth": Infinity}', "[" * 3000, '{"base": "x", "kept": 96, "depth": -9, "dead": -9}'],
)
def test_a_filling_that_lies_is_not_believed(case: Case, filling: str) -> None:
    base = case.folder / "base.sqsh"
    with Squashfs(base) as image:
        used = image.super.used
    with base.open("r+b") as file:
        file.truncate(used)
        file.seek(used)
        file.write(b"hpcstack-splice\n" + filling.encode() + b"\0" + bytes(4096))
    assert read_splice(base) is None
    case.change_by(4, 10)
    assert case.splice().about.depth == 1


def test_what_a_layer_had_deleted_is_not_in_the_file(case: Case) -> None:
    case.change("printf 'the-secret-of-a-step' >secret; printf 'kept' >kept")
    case.change("rm secret")
    case.words = PACKED["nothing compressed"]
    for number, upper in enumerate(case.uppers):
        case.pack(upper, f"layer-{number}.sqsh")
    case.pack("base", "base.sqsh")
    case.splice()
    assert b"the-secret-of-a-step" in case.layers[0].read_bytes()
    assert b"the-secret-of-a-step" not in (case.folder / "out.sqsh").read_bytes()
    judge(case.folder / "out.sqsh", case.expected)


def test_owners(case: Case) -> None:
    """New owners get a place in the table of ids; `rooted` makes all of it root's; more than 65,535
    are refused.
    """
    lines = [f"/f{number} f 644 {number} {number + 1} echo x" for number in range(1, 40)]
    made = case.folder / "base.sqsh"
    made.unlink()
    subprocess.run(["mksquashfs", case.folder / "base", made, "-quiet", "-no-progress", "-comp", "zstd",
                    *(word for line in lines for word in ("-p", line.lstrip("/")))], check=True, capture_output=True)  # fmt: skip
    assert not belongs_to_root(made)
    case.change("echo x >new", look=False)
    splice_image(made, case.layers, case.folder / "out.sqsh", TIME)
    with Squashfs(case.folder / "out.sqsh") as image:
        found = image.find(b"f7")
        assert found
        assert (found.uid, found.gid) == (7, 8)
    splice_image(made, case.layers, case.folder / "rooted.sqsh", TIME, rooted=True)
    assert belongs_to_root(case.folder / "rooted.sqsh")
    assert {
        about[1] for about in mounted_by("squashfuse_ll", case.folder / "rooted.sqsh").values()
    } == {0}


def test_more_owners_than_there_can_be(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcstack.squashfs.write.MAX_IDS", 0)
    case.change("echo x >new")
    with Squashfs(case.folder / "base.sqsh") as base, Squashfs(case.layers[0]) as layer:
        writer = Writer(Merged(base, [layer]))
        with pytest.raises(Unreadable, match="owners"):
            writer._id(4711)


@pytest.mark.parametrize(
    "refusal", ["clone", "direct", "writes past the cache", "copy_file_range", "zero"]
)
def test_every_way_to_copy_gives_the_same_bytes(
    case: Case, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    case.change_by(4, 40)
    whole = case.splice()
    assert whole.how in ("shared", "direct", "kernel")
    monkeypatch.setattr(copy, "_clone", lambda *_: 0)
    if refusal != "clone":
        monkeypatch.setattr(kept, "LOCAL", ())
    if refusal == "writes past the cache":
        monkeypatch.setattr(
            kept, "LOCAL", tuple({"ext4", "xfs", find_filesystem(case.folder.stat().st_dev)})
        )
        monkeypatch.setattr(os, "pwrite", cannot_be_tried)
    if refusal in ("clone", "direct", "writes past the cache"):
        pass
    elif refusal == "zero":  # what some filesystems of the kernel's say
        monkeypatch.setattr(os, "copy_file_range", lambda *_: 0)
    else:

        def refused(*_: object) -> int:
            raise OSError(18, "Invalid cross-device link")

        monkeypatch.setattr(os, "copy_file_range", refused)
    other = case.splice("other.sqsh")
    assert other.sha256 == whole.sha256
    local = find_filesystem(case.folder.stat().st_dev) in ("ext4", "xfs")
    assert other.how in {"clone": ["direct" if local else "kernel"], "direct": ["kernel"],
                         "writes past the cache": ["kernel"]}.get(refusal, ["plain"])  # fmt: skip


PWRITE = os.pwrite


def cannot_be_tried(file: int, data: bytes, at: int) -> int:
    """It can be opened so, and not be written."""
    if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT:
        raise OSError(22, "Invalid argument")
    return PWRITE(file, data, at)


@pytest.mark.parametrize("way", ["direct", "kernel"])
def test_a_base_of_many_pieces(case: Case, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """More than are in memory at once: each is summed and written in its place."""
    case.change_by(4, 40)
    whole = case.splice()
    monkeypatch.setattr(copy, "_clone", lambda *_: 0)
    monkeypatch.setattr(kept, "PIECE", mmap.PAGESIZE * 3)
    monkeypatch.setattr(
        kept, "LOCAL", (find_filesystem(case.folder.stat().st_dev),) if way == "direct" else ()
    )
    other = case.splice("other.sqsh")
    assert other.how == way or (
        way == "direct" and find_filesystem(case.folder.stat().st_dev) not in ("ext4", "xfs")
    )
    assert (
        case.folder / "base.sqsh"
    ).stat().st_size > 20 * kept.PIECE or mmap.PAGESIZE > copy.ALIGNED
    assert (
        other.sha256
        == whole.sha256
        == hashlib.sha256((case.folder / "other.sqsh").read_bytes()).hexdigest()
    )


@pytest.mark.parametrize("where", ["write_all", "copy_bytes", "read_all"])
def test_a_disk_that_gets_full_while_it_is_copied(
    case: Case, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The error is the disk's, from whichever thread it comes, and nothing is left running."""
    case.change_by(4, 40)
    monkeypatch.setattr(copy, "_clone", lambda *_: 0)
    monkeypatch.setattr(kept, where, full)
    if where == "write_all" and find_filesystem(case.folder.stat().st_dev) not in kept.LOCAL:
        pytest.skip("this filesystem is not written past the page cache")
    with pytest.raises(OSError, match="No space"):
        case.splice()
    assert not [one for one in threading.enumerate() if one.name.startswith("ThreadPool")]


def full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_base_that_is_no_squashfs_or_damaged(case: Case, tmp_path: Path) -> None:
    case.change_by(4, 20)
    good = (case.folder / "base.sqsh").read_bytes()
    for number, bad in enumerate((b"", b"hsqs", good[:4000], b"x" * 5000)):
        path = tmp_path / f"bad-{number}"
        path.write_bytes(bad)
        with pytest.raises(Unreadable):
            splice_image(path, case.layers, tmp_path / "out", TIME)
    chance = random.Random(7)
    at = Superblock(*Superblock.FORMAT.unpack(good[:96])).inode_table
    refused = 0
    for _ in range(150):  # whatever is torn in its tables: refused or spliced, never anything else
        torn = bytearray(good)
        for _ in range(chance.choice((1, 3, 30))):
            torn[chance.choice((chance.randrange(96), chance.randrange(at, len(torn))))] = (
                chance.randrange(256)
            )
        path = tmp_path / "torn"
        path.write_bytes(torn)
        try:
            splice_image(path, case.layers, tmp_path / "out", TIME, always=True)
        except Unreadable:
            refused += 1
    assert refused > 50


def test_a_layer_that_is_packed_in_another_way_is_refused(case: Case) -> None:
    case.change_by(4, 20)
    case.words = PACKED["gzip"]
    case.pack("upper-0", "layer-0.sqsh")
    with pytest.raises(Unreadable, match="another way"):
        case.splice()


def test_the_reader_knows_every_kind_of_file(case: Case) -> None:
    case.change(
        "mkfifo pipe; ln -s target link; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'"
    )
    case.splice()
    with Squashfs(case.folder / "out.sqsh") as image:
        kinds = {name: image.find(name) for name in (b"pipe", b"link", b"sock", b"no")}
        assert [kinds[name].kind if kinds[name] else None for name in kinds] == [6, 3, 7, None]  # type: ignore[union-attr]
        assert kinds[b"link"]
        assert kinds[b"link"].target == b"target"
        assert kinds[b"pipe"]
        assert kinds[b"pipe"].xattr == NONE
