"""Tables of metadata: compressed blocks of 8 KiB, and places in them that are read on over a block's end."""

from __future__ import annotations

import os
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hpcstack.squashfs.codec import METADATA, Codec, Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAIN = 1 << 15  # in a block's size: it is not compressed
LARGEST = 1 << 30  # bytes of one table, compressed: 300,000 inodes have 12 MB


@contextmanager
def readable() -> Iterator[None]:
    """What a file that is not as it should be does to the reader, said as what it is."""
    try:
        yield
    except (struct.error, IndexError, OverflowError, MemoryError, OSError) as error:
        raise Unreadable(f"it is damaged: {error}") from None


class Table:
    """Metadata blocks between START and END of a file; `block` gives one and where the next begins."""

    def __init__(self, file: int, start: int, end: int, expander: Codec) -> None:
        if not 0 <= end - start <= LARGEST:
            raise Unreadable("a table has no size that can be")
        self.start, self.codec = start, expander
        self.raw = os.pread(file, end - start, start)
        if len(self.raw) != end - start:
            raise Unreadable("the file ends before its tables do")
        self.kept: dict[int, tuple[bytes, int]] = {}

    def block(self, at: int) -> tuple[bytes, int]:
        """The block AT this many bytes from the table's start, uncompressed, and where the next one begins."""
        if (found := self.kept.get(at)) is not None:
            return found
        begins, ends = self.extent(at)
        data = self.raw[begins:ends]
        if not struct.unpack_from("<H", self.raw, at)[0] & PLAIN:
            data = self.codec.expand(data, METADATA)
        if len(self.kept) >= 64:
            self.kept.clear()
        self.kept[at] = data, ends
        return data, ends

    def extent(self, at: int) -> tuple[int, int]:
        """Where the bytes of the block AT begin and end in `raw`."""
        if not 0 <= at <= len(self.raw) - 2:
            raise Unreadable("metadata lies outside of its table")
        size = struct.unpack_from("<H", self.raw, at)[0] & ~PLAIN
        if not 0 < size <= METADATA or at + 2 + size > len(self.raw):
            raise Unreadable("a block of metadata is empty, or reaches beyond its table")
        return at + 2, at + 2 + size

    def read(self, at: int, offset: int, size: int) -> tuple[bytes, int, int]:
        """SIZE bytes from OFFSET in the block AT, over as many blocks as it takes, and the place behind them."""
        out = bytearray()
        while True:
            data, following = self.block(at)
            piece = data[offset : offset + size - len(out)]
            out += piece
            offset += len(piece)
            if len(out) == size:
                return bytes(out), at, offset
            if not piece and offset < len(data):
                raise Unreadable("metadata ends in the middle")
            at, offset = following, 0

    def last(self) -> tuple[int, bytes]:
        """Where the last block begins, and what is in it; (size of the table, nothing) for an empty one."""
        at, before = 0, 0
        while at < len(self.raw):
            before, at = at, self.extent(at)[1]
        return (before, self.block(before)[0]) if self.raw else (0, b"")


class Cursor:
    """A place in a table that moves on as it is read."""

    def __init__(self, table: Table, at: int, offset: int) -> None:
        self.table, self.at, self.offset = table, at, offset

    def piece(self, size: int) -> bytes:
        data, self.at, self.offset = (
            self.table.read(self.at, self.offset, size) if size else (b"", self.at, self.offset)
        )
        return data

    def take(self, layout: str) -> tuple[int, ...]:
        """The numbers that LAYOUT, of struct's, says."""
        return struct.unpack(layout, self.piece(struct.calcsize(layout)))
