"""One file of an image, found and read: as the tree that was packed has it, by every compressor."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcstack.squashfs.codec import Unreadable
from hpcstack.squashfs.inode import FILE, LINK
from hpcstack.squashfs.lookup import MoreThanAsked, find_inode, read_content
from hpcstack.squashfs.read import Squashfs
from hpcstack.squashfs.splice import splice_image

pytestmark = pytest.mark.squashfs
BLOCK = 131072
SIZES = {"empty": 0, "tail": 100, "block": BLOCK, "more": 3 * BLOCK + 17}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("tree")
    drawn = random.Random(1)
    for folder in ("usr/bin", "opt/a/b", "etc"):
        (top / folder).mkdir(parents=True)
    for name, size in SIZES.items():
        (top / f"opt/{name}-text").write_bytes(b"hpcstack" * (size // 8) + b"x" * (size % 8))
        (top / f"opt/{name}-noise").write_bytes(drawn.randbytes(size))
    with (top / "opt/holes").open("wb") as file:
        file.truncate(5 * BLOCK)
        file.seek(2 * BLOCK + 5)
        file.write(b"in the middle")
    for number in range(600):  # a folder with an index
        (top / f"opt/a/file-{number:03}").write_text(str(number))
    for link, target in {
        "bin": "usr/bin", "usr/bin/text": "/opt/a/../tail-text", "opt/up": "../../../../opt/./tail-text", "opt/loop": "loop",
        "etc/os-release": "../opt/a/b/../file-007", "opt/none": "nothing", "opt/a/b/abs": "/opt",
    }.items():  # fmt: skip
        (top / link).symlink_to(target)
    (top / os.fsdecode(b"opt/\xff")).write_text("not UTF-8")
    return top


def pack(tree: Path, output: Path, *words: str) -> Path:
    subprocess.run(
        ["mksquashfs", str(tree), str(output), "-quiet", "-no-progress", *words], check=True
    )
    return output


@pytest.fixture(scope="module")
def image(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(tree, tmp_path_factory.mktemp("image") / "image.sqsh", "-comp", "zstd")


@pytest.mark.parametrize("words", [
    ("-comp", "gzip"), ("-comp", "xz"), ("-comp", "lzo"), ("-comp", "lz4"), ("-comp", "zstd"), ("-comp", "lzma"),
    ("-comp", "gzip", "-noI", "-noD", "-noF"), ("-comp", "zstd", "-b", "4096"), ("-comp", "zstd", "-b", "1M"),
    ("-comp", "zstd", "-no-fragments"), ("-comp", "zstd", "-always-use-fragments"),
])  # fmt: skip
def test_every_file_is_read_as_it_was_packed(
    tree: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    with Squashfs(pack(tree, tmp_path / "image.sqsh", *words)) as opened:
        files = [
            path for path in sorted(tree.rglob("*")) if path.is_file() and not path.is_symlink()
        ]
        assert len(files) > 600
        for path in files:
            found = find_inode(opened, str(path.relative_to(tree)))
            assert found is not None and found.kind == FILE, path
            assert read_content(opened, found, 1 << 20) == path.read_bytes(), path


@pytest.mark.parametrize(("path", "leads_to"), [
    ("bin/text", "opt/tail-text"), ("/bin/text", "opt/tail-text"), ("opt/up", "opt/tail-text"), ("//opt/./up/", "opt/tail-text"),
    ("etc/os-release", "opt/a/file-007"), ("opt/a/b/abs/a/b/abs/tail-text", "opt/tail-text"), ("../../opt/up", "opt/tail-text"),
])  # fmt: skip
def test_links_are_followed_as_in_the_image(
    tree: Path, image: Path, path: str, leads_to: str
) -> None:
    with Squashfs(image) as opened:
        found = find_inode(opened, path)
        assert found is not None
        assert read_content(opened, found, 1 << 20) == (tree / leads_to).read_bytes()


@pytest.mark.parametrize(
    "path", ["opt/loop", "opt/loop/x", "opt/none", "nothing", "opt/tail-text/x", "opt/a/file-600"]
)
def test_what_is_not_there_is_not_found(image: Path, path: str) -> None:
    with Squashfs(image) as opened:
        assert find_inode(opened, path) is None


def test_a_link_itself(image: Path) -> None:
    with Squashfs(image) as opened:
        found = find_inode(opened, "opt/none", follow=False)
        assert found is not None
        assert (found.kind, found.target) == (LINK, b"nothing")
        with pytest.raises(Unreadable, match="no file"):
            read_content(opened, found, 1)


def test_a_file_larger_than_asked_for_is_not_read(image: Path) -> None:
    with Squashfs(image) as opened:
        found = find_inode(opened, "opt/more-text")
        assert found is not None
        with pytest.raises(MoreThanAsked):
            read_content(opened, found, 1000)


@settings(
    max_examples=int(os.environ.get("HPCSTACK_EXAMPLES", "200")), deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(data=st.data())
def test_a_damaged_image_is_unreadable_and_no_more(
    image: Path, tmp_path: Path, data: st.DataObject
) -> None:
    whole = bytearray(image.read_bytes())
    tables = int.from_bytes(whole[64:72], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(
            st.one_of(
                st.integers(0, 95),
                st.integers(tables, len(whole) - 1),
                st.integers(0, len(whole) - 1),
            )
        )
        whole[at] = data.draw(st.integers(0, 255))
    torn = tmp_path / "torn.sqsh"
    torn.write_bytes(whole[: data.draw(st.one_of(st.just(len(whole)), st.integers(0, len(whole))))])
    try:
        with Squashfs(torn) as opened:
            for path in ("bin/text", "opt/more-noise", "opt/holes", "opt/a/b/abs/tail-text"):
                if found := find_inode(opened, path):
                    assert len(read_content(opened, found, 1 << 20)) <= 1 << 20
    except Unreadable:
        pass


def test_a_table_has_as_many_entries_as_any_image_needs(
    image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small file may claim what fills the memory: blocks of its tables may not overlap, and there
    is a bound.
    """
    with Squashfs(image) as opened:
        assert opened.exported()
        monkeypatch.setattr("hpcstack.squashfs.read.MOST_INODES", 10)
        with pytest.raises(Unreadable, match="more entries than any image needs"):
            opened.exported()
        monkeypatch.setattr("hpcstack.squashfs.read.MOST_LISTED", 100)
        with pytest.raises(Unreadable, match="a folder is larger"):
            find_inode(opened, "opt/a/file-000")


def test_a_base_whose_fragments_lie_in_its_tables_is_not_spliced(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Squashfs(image) as opened:
        tables = opened.super.inode_table
    monkeypatch.setattr(Squashfs, "fragments", lambda _: [(tables - 10, 11, 0)])
    with pytest.raises(Unreadable, match="a fragment of the base lies in its tables"):
        splice_image(image, [], tmp_path / "out.sqsh", 0)
