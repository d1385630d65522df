"""Read tables of metadata: compressed blocks of 8 KiB, over whose ends the data go on.

Tested in tests/unit/squashfs/test_splice.py.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, overload

from hpcstack.squashfs.codec import METADATA, Codec, Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAIN = 1 << 15  # a flag in a block's size: it is not compressed
LARGEST = 64 << 20  # bytes of a compressed table in memory; that of 300,000 inodes has 12 MB
MOST_BLOCKS = 1 << 17  # of one table: a gigabyte when it is expanded
WINDOW = 1 << 16  # bytes that are read at once
KEPT = 64  # expanded blocks that are remembered


@contextmanager
def explain_damage() -> Iterator[None]:
    """Turn the errors that reading a damaged file may cause into Unreadable."""
    try:
        yield
    except (struct.error, IndexError, OverflowError, MemoryError, OSError) as error:
        raise Unreadable(f"it is damaged: {error}") from None


class Table:
    """The metadata blocks between START and END of FILE, a descriptor.

    Nothing is read before it is asked for: in a crafted file, a table may be a hole that is larger
    than any memory.
    """

    def __init__(self, file: int, start: int, end: int, expander: Codec) -> None:
        if end < start:
            raise Unreadable("a table ends before it begins")
        self.file, self.start, self.size, self.codec = file, start, end - start, expander
        self.kept: dict[int, tuple[bytes, int]] = {}
        self.window, self.window_at = b"", 0

    def block(self, at: int) -> tuple[bytes, int]:
        """Return the uncompressed block AT, and where the next one begins.

        Both places are in bytes from the table's start.
        """
        found = self.kept.get(at)
        if found is not None:
            return found
        begins, ends = self.extent(at)
        data = self._bytes(begins, ends - begins)
        if not self._head(at) & PLAIN:
            data = self.codec.expand(data, METADATA)
        if len(self.kept) >= KEPT:
            self.kept.clear()
        self.kept[at] = data, ends
        return data, ends

    def extent(self, at: int) -> tuple[int, int]:
        """Return where the data of the block AT begin and end, in bytes from the table's start."""
        if not 0 <= at <= self.size - 2:
            raise Unreadable("metadata lies outside of its table")
        size = self._head(at) & ~PLAIN
        if not 0 < size <= METADATA or at + 2 + size > self.size:
            raise Unreadable("a block of metadata is empty, or reaches beyond its table")
        return at + 2, at + 2 + size

    def whole(self) -> bytes:
        """Return the whole table as it lies in the file, compressed."""
        if self.size > LARGEST:
            raise Unreadable(f"a table is larger than {LARGEST >> 20} MiB")
        data = os.pread(self.file, self.size, self.start)
        if len(data) != self.size:
            raise Unreadable("the file ends before its tables do")
        return data

    def _head(self, at: int) -> int:
        """Return the first two bytes of the block AT: its size, with the flag PLAIN."""
        (head,) = struct.unpack("<H", self._bytes(at, 2))
        return int(head)

    def _bytes(self, at: int, size: int) -> bytes:
        """Return SIZE bytes, at most METADATA, from AT bytes behind the table's start.

        A larger window is read at once, and remembered.
        """
        if not self.window_at <= at <= at + size <= self.window_at + len(self.window):
            self.window = os.pread(self.file, min(WINDOW, self.size - at), self.start + at)
            self.window_at = at
        begin = at - self.window_at
        data = self.window[begin : begin + size]
        if len(data) != size:
            raise Unreadable("the file ends before its tables do")
        return data

    def read(self, at: int, offset: int, size: int) -> tuple[bytes, int, int]:
        """Read SIZE bytes from OFFSET in the block AT on, over as many blocks as it takes.

        Return them, and the block and offset behind them.
        """
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
        """Return where the last block begins, and its content; (0, nothing) for an empty table."""
        if not self.size:
            return 0, b""
        at = before = count = 0
        while at < self.size:
            before = at
            _, at = self.extent(at)
            count += 1
            if count > MOST_BLOCKS:
                raise Unreadable("a table has more blocks than any image needs")
        data, _ = self.block(before)
        return before, data


class Rows(Sequence[tuple[int, ...]]):
    """The rows of a small table, kept in memory as DATA, and made tuples when they are asked for.

    LAYOUT is the format of a row, as struct has it.
    """

    def __init__(self, layout: str, data: bytes) -> None:
        self.layout, self.data = struct.Struct(layout), bytearray(data)

    def append(self, row: tuple[int, ...]) -> None:
        """Add ROW at the end."""
        self.data += self.layout.pack(*row)

    def __len__(self) -> int:
        return len(self.data) // self.layout.size

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return self.layout.iter_unpack(self.data)

    @overload
    def __getitem__(self, number: int) -> tuple[int, ...]: ...
    @overload
    def __getitem__(self, number: slice) -> list[tuple[int, ...]]: ...
    def __getitem__(self, number: int | slice) -> tuple[int, ...] | list[tuple[int, ...]]:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        if not 0 <= number < len(self):
            raise IndexError(number)
        return self.layout.unpack_from(self.data, number * self.layout.size)


class Cursor:
    """A place in TABLE, at OFFSET in the block AT, that moves on as it is read."""

    def __init__(self, table: Table, at: int, offset: int) -> None:
        self.table, self.at, self.offset = table, at, offset

    def piece(self, size: int) -> bytes:
        """Read SIZE bytes."""
        if not size:
            return b""
        data, self.at, self.offset = self.table.read(self.at, self.offset, size)
        return data

    def take(self, layout: str) -> tuple[int, ...]:
        """Read the numbers of LAYOUT, a format of struct."""
        return struct.unpack(layout, self.piece(struct.calcsize(layout)))
