"""Read inodes and the listings of folders from their tables.

Tested in tests/unit/squashfs/test_splice.py and tests/unit/squashfs/test_lookup.py.
"""

from __future__ import annotations

import struct
import sys
from array import array
from typing import TYPE_CHECKING, NamedTuple

from hpcstack.squashfs.codec import Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hpcstack.squashfs.table import Cursor

NONE = 0xFFFFFFFF  # no fragment, or no extended attributes
DIR, FILE, LINK, BLOCK, CHAR, FIFO, SOCKET = range(1, 8)  # types; 7 more for extended inodes
STORED = 1 << 24  # a flag in a data block's size: it is not compressed
MOST_BLOCKS = 1 << 22  # of one file: 512 GiB in blocks of 128 KiB
MOST_NAMES = 1 << 20  # of one folder
HEADER, ENTRY = struct.Struct("<3I"), struct.Struct("<HhHH")  # of a listing
MAX_TARGET = 1 << 16  # bytes of a link's target


class Inode(NamedTuple):
    """One inode, basic or extended. Fields that its kind does not have keep their defaults."""

    kind: int  # DIR to SOCKET, also for an extended inode
    mode: int
    uid: int
    gid: int
    time: int
    number: int
    links: int = 1
    start: int = 0  # of a file's data; of a folder: the block of its listing
    size: int = 0
    offset: int = 0  # of a file's tail in its fragment; of a folder's listing in its block
    parent: int = 0
    sparse: int = 0
    fragment: int = NONE
    blocks: Sequence[int] = ()  # size of each data block, with the flag STORED
    target: bytes = b""
    device: int = 0
    xattr: int = NONE

    @property
    def stored(self) -> int:
        """The bytes of a file's own blocks as they lie in the image, without its tail."""
        return sum(size & ~STORED for size in self.blocks)


class DirectoryEntry(NamedTuple):
    """What a folder says of one of its names."""

    reference: int  # where the inode lies: block << 16 | offset
    number: int
    kind: int


def read_inode(cursor: Cursor, ids: Sequence[int], block_size: int) -> Inode:
    """Read the inode at CURSOR, of an image with the table IDS of users and groups.

    Raise Unreadable for what cannot be in an inode.
    """
    kind, mode, uid, gid, time, number = cursor.take("<4H2I")
    extended = kind > SOCKET
    if extended:
        kind -= SOCKET
    if not DIR <= kind <= SOCKET:
        raise Unreadable("an inode is of an unknown kind")
    if max(uid, gid) >= len(ids):
        raise Unreadable("an inode has an owner or group that is not in the table")
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
    """Read the rest of a regular file's inode, with the size of each of its blocks."""
    if extended:
        start, size, sparse, links, fragment, offset, xattr = cursor.take("<3Q4I")
    else:
        start, fragment, offset, size = cursor.take("<4I")
        sparse, links, xattr = 0, 1, NONE

    count = size // block_size
    if fragment == NONE and size % block_size:  # then the tail is a block of its own
        count += 1
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
    """Return DATA, little-endian numbers, as an array of type KIND ("I", "Q").

    It takes a tenth of the memory of a list.
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
    xattr = _xattr(cursor, extended=extended)
    return common._replace(links=links, target=target, xattr=xattr)


def _other(cursor: Cursor, common: Inode, *, extended: bool) -> Inode:
    """Read the rest of a device, FIFO or socket."""
    (links,) = cursor.take("<I")
    device = 0
    if common.kind in (BLOCK, CHAR):
        (device,) = cursor.take("<I")
    xattr = _xattr(cursor, extended=extended)
    return common._replace(links=links, device=device, xattr=xattr)


def _xattr(cursor: Cursor, *, extended: bool) -> int:
    """Read the number of an inode's attributes, which only EXTENDED inodes have."""
    if not extended:
        return NONE
    (number,) = cursor.take("<I")
    return number


def read_entries(data: bytes) -> Iterator[tuple[bytes, DirectoryEntry]]:
    """Yield (name, entry) for each name in DATA, a folder's listing.

    Names stand in groups. The header of a group has what its inodes have in common: the block in
    which they lie, and a number that theirs are near.
    """
    at = names = 0
    while at < len(data):
        count, block, number = HEADER.unpack_from(data, at)
        at += HEADER.size
        in_group = min(count, 255) + 1  # the header has one less, and the format at most 256
        names += in_group
        if names > MOST_NAMES:
            raise Unreadable(f"a folder has more than {MOST_NAMES} names")
        for _ in range(in_group):
            offset, difference, kind, length = ENTRY.unpack_from(data, at)
            at += ENTRY.size
            name = data[at : at + length + 1]
            at += length + 1
            if len(name) != length + 1 or b"/" in name or name in (b".", b".."):
                raise Unreadable("a folder has a name that cannot be")
            yield name, DirectoryEntry(block << 16 | offset, number + difference, kind)
