"""Inodes and the names of folders, as they lie in their tables."""

from __future__ import annotations

import struct
import sys
from array import array
from typing import TYPE_CHECKING, NamedTuple

from hpcstack.squashfs.codec import Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hpcstack.squashfs.table import Cursor

NONE = 0xFFFFFFFF
DIR, FILE, LINK, BLOCK, CHAR, FIFO, SOCKET = range(1, 8)  # a type, +7 where it is an extended inode
STORED = 1 << 24  # in a data block's size: it is not compressed
MOST_BLOCKS = 1 << 22  # of one file: 512 GiB in blocks of 128 KiB
MOST_NAMES = 1 << 20  # of one folder
HEADER, ENTRY = struct.Struct("<3I"), struct.Struct("<HhHH")  # of a listing
MAX_TARGET = 1 << 16  # bytes of a link


class Inode(NamedTuple):
    """One inode; `kind` is never an extended one. Of what it has not, the value is 0."""

    kind: int
    mode: int
    uid: int
    gid: int
    time: int
    number: int
    links: int = 1
    start: int = 0  # of a file's data; of a folder: the block of its listing
    size: int = 0
    offset: int = (
        0  # of a folder: in the block of its listing; of a file: of its tail in the fragment
    )
    parent: int = 0
    sparse: int = 0
    fragment: int = NONE
    blocks: Sequence[int] = ()
    target: bytes = b""
    device: int = 0
    xattr: int = NONE

    @property
    def stored(self) -> int:
        """Bytes of a file's own blocks, as they lie in the image."""
        return sum(size & ~STORED for size in self.blocks)


class DirectoryEntry(NamedTuple):
    """One name of a folder: where its inode lies (block << 16 | offset), the inode's number and
    kind.
    """

    reference: int
    number: int
    kind: int


def read_inode(cursor: Cursor, ids: Sequence[int], block_size: int) -> Inode:
    """The inode at CURSOR of an image with these IDS."""
    kind, mode, uid, gid, time, number = cursor.take("<4H2I")
    extended = kind > SOCKET
    kind -= SOCKET if extended else 0
    if not DIR <= kind <= SOCKET or max(uid, gid) >= len(ids):
        raise Unreadable("an inode is of no kind, or nobody's")
    common = Inode(kind, mode, ids[uid], ids[gid], time, number)
    if kind == DIR:
        return _folder(cursor, common, extended=extended)
    if kind == FILE:
        return _file(cursor, common, block_size, extended=extended)
    if kind == LINK:
        return _link(cursor, common, extended=extended)
    return _other(cursor, common, extended=extended)


def _folder(cursor: Cursor, common: Inode, *, extended: bool) -> Inode:
    if extended:
        links, size, start, parent, _, offset, xattr = cursor.take("<4I2HI")
        return common._replace(
            links=links, size=size, start=start, parent=parent, offset=offset, xattr=xattr
        )
    start, links, size, offset, parent = cursor.take("<2I2HI")
    return common._replace(links=links, size=size, start=start, parent=parent, offset=offset)


def _file(cursor: Cursor, common: Inode, block_size: int, *, extended: bool) -> Inode:
    if extended:
        start, size, sparse, links, fragment, offset, xattr = cursor.take("<3Q4I")
    else:
        start, fragment, offset, size = cursor.take("<4I")
        sparse, links, xattr = 0, 1, NONE
    count = size // block_size if fragment != NONE else -(-size // block_size)
    if count > MOST_BLOCKS:
        raise Unreadable("a file is larger than any can be")
    blocks = read_numbers("I", cursor.piece(4 * count))
    return common._replace(
        start=start,
        size=size,
        sparse=sparse,
        links=links,
        fragment=fragment,
        offset=offset,
        xattr=xattr,
        blocks=blocks,
    )


def read_numbers(kind: str, data: bytes) -> array[int]:
    """DATA, numbers of little ends, as an array of KIND, of module array's: a tenth of what a list
    takes.
    """
    out = array(kind, data)
    if sys.byteorder == "big":
        out.byteswap()
    return out


def _link(cursor: Cursor, common: Inode, *, extended: bool) -> Inode:
    links, size = cursor.take("<2I")
    if size > MAX_TARGET:
        raise Unreadable("a link is longer than any can be")
    target = cursor.piece(size)
    return common._replace(
        links=links, target=target, xattr=cursor.take("<I")[0] if extended else NONE
    )


def _other(cursor: Cursor, common: Inode, *, extended: bool) -> Inode:
    links = cursor.take("<I")[0]
    device = cursor.take("<I")[0] if common.kind in (BLOCK, CHAR) else 0
    return common._replace(
        links=links, device=device, xattr=cursor.take("<I")[0] if extended else NONE
    )


def read_entries(data: bytes) -> Iterator[tuple[bytes, DirectoryEntry]]:
    """(name, entry) of what a folder's listing holds."""
    at = names = 0
    while at < len(data):
        count, block, number = HEADER.unpack_from(data, at)
        at += HEADER.size
        names += min(count, 255) + 1
        if names > MOST_NAMES:
            raise Unreadable(f"a folder has more than {MOST_NAMES} names")
        for _ in range(min(count, 255) + 1):
            offset, difference, kind, length = ENTRY.unpack_from(data, at)
            at += ENTRY.size
            name = data[at : at + length + 1]
            at += length + 1
            if len(name) != length + 1 or b"/" in name or name in (b".", b".."):
                raise Unreadable("a folder has a name that cannot be")
            yield name, DirectoryEntry(block << 16 | offset, number + difference, kind)
