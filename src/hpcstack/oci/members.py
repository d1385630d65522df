"""Tar, member by member, out of a stream that cannot be sought: headers as TarInfo, bodies in pieces, uncopied.

The headers (ustar, GNU, PAX: long names, sparse maps, extended attributes) are read by the standard library.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import Any, cast

BLOCK = tarfile.BLOCKSIZE
MAX_SPARSE, MAX_HEADER = 1 << 40, 1 << 26
ZEROS = bytes(1 << 20)


class Damaged(ValueError):
    """The stream is no tar, or ends before it should."""


class Flow:
    """A stream of pieces that is read forward only."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.pieces, self.piece, self.at, self.before = pieces, memoryview(b""), 0, 0

    def tell(self) -> int:
        return self.before + self.at

    def _more(self) -> bool:
        """Whether there is a byte left; the next piece is at hand then."""
        while self.at == len(self.piece):
            found = next(self.pieces, None)
            if found is None:
                return False
            self.before += len(self.piece)
            self.piece, self.at = memoryview(found), 0
        return True

    def read(self, count: int) -> bytes:
        """COUNT bytes of a header; fewer only at the end."""
        if count > MAX_HEADER:
            raise Damaged(f"has a header of {count} bytes")
        if count <= len(self.piece) - self.at:
            self.at += count
            return bytes(self.piece[self.at - count : self.at])
        return b"".join(self.take(count))

    def take(self, count: int) -> Iterator[memoryview]:
        """The next COUNT bytes as pieces; fewer only at the end."""
        while count > 0 and self._more():
            part = self.piece[self.at : self.at + count]
            self.at += len(part)
            count -= len(part)
            yield part

    def skip(self, count: int) -> None:
        for part in self.take(count):
            count -= len(part)
        if count > 0:
            raise Damaged("ends in the middle of a file")

    def drain(self) -> None:
        """To the end: only there a digest is known to be right."""
        while self._more():
            self.at = len(self.piece)


class _Reader:
    """What TarInfo.fromtarfile asks of a TarFile."""

    encoding, errors = "utf-8", "surrogateescape"

    def __init__(self, flow: Flow) -> None:
        self.fileobj, self.offset = flow, 0
        self.pax_headers: dict[str, str] = {}


class Members:
    """The members of one tar. Each one's body is taken, or not, before the next one is asked for."""

    def __init__(self, flow: Flow) -> None:
        self.flow, self.reader = flow, _Reader(flow)
        self.left = 0

    def __iter__(self) -> Iterator[tarfile.TarInfo]:
        while (member := self._next()) is not None:
            self.left = _stored(member)
            end = self.flow.tell() + -(-self.left // BLOCK) * BLOCK  # tarfile's own offset errs for big sparse files
            yield member
            self.flow.skip(end - self.flow.tell())
        self.flow.drain()

    def _next(self) -> tarfile.TarInfo | None:
        try:
            self.reader.offset = self.flow.tell()
            return tarfile.TarInfo.fromtarfile(cast(Any, self.reader))
        except (tarfile.EOFHeaderError, tarfile.EmptyHeaderError):  # type: ignore[attr-defined]
            return None
        except tarfile.TruncatedHeaderError:  # type: ignore[attr-defined]
            raise Damaged("ends in the middle of a header") from None
        except (tarfile.TarError, ValueError, OverflowError, RecursionError, IndexError) as error:
            raise Damaged(f"is no tar: {error}") from None

    def body(self, member: tarfile.TarInfo) -> Iterator[memoryview | bytes]:
        """The content of the member that came last, holes filled with zeros."""
        holes = cast("list[tuple[int, int]] | None", getattr(member, "sparse", None))
        if holes is None:
            yield from self._stored(self.left)
            return
        at = 0
        for offset, size in holes:
            if offset < at or offset + size > member.size:
                raise Damaged(f"has a sparse file that makes no sense: {member.name}")
            yield from _zeros(offset - at)
            yield from self._stored(size)
            at = offset + size
        yield from _zeros(member.size - at)

    def _stored(self, count: int) -> Iterator[memoryview]:
        self.left -= count
        if self.left < 0:
            raise Damaged("has a sparse file that is longer than its data")
        for part in self.flow.take(count):
            count -= len(part)
            yield part
        if count:
            raise Damaged("ends in the middle of a file")


def _zeros(count: int) -> Iterator[bytes]:
    while count > 0:
        yield ZEROS[:count] if count < len(ZEROS) else ZEROS
        count -= len(ZEROS)


def _stored(member: tarfile.TarInfo) -> int:
    """Bytes that the body takes in the archive."""
    if not member.isreg() and member.type in tarfile.SUPPORTED_TYPES:
        return 0
    holes = cast("list[tuple[int, int]] | None", getattr(member, "sparse", None))
    if holes is None:
        size = member.size
    else:
        if member.size > MAX_SPARSE:
            raise Damaged(f"has a sparse file of {member.size} bytes: {member.name}")
        size = sum(length for _, length in holes)
    if size < 0:
        raise Damaged(f"has a file of negative size: {member.name}")
    return size
