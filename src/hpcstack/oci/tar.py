"""Read tar member by member from a stream that cannot seek.

Headers become TarInfo, and bodies are passed on in pieces, without a copy. All but the plainest
headers (GNU, PAX: long names, sparse maps, extended attributes) are read by the standard library.

Tested in tests/unit/oci/test_importer.py and tests/hostile/test_layers.py.
"""

from __future__ import annotations

import re
import tarfile
from typing import TYPE_CHECKING, Any, cast

from hpcstack.oci.ustar import passes_on, read_plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BLOCK = tarfile.BLOCKSIZE
MAX_SPARSE = 1 << 40  # bytes of a sparse file, with its holes
MAX_PAX = 1 << 20  # bytes of a PAX header
MAX_HEADERS = 1 << 21  # bytes of all headers of one member together
MAX_LONG_NAME = 1 << 16  # bytes of GNU's long name
MAX_GLOBAL = 64  # keys in global PAX headers
MAX_DIGITS, MAX_KEY = 128, 512  # characters of a number and of a key in a PAX header
MAX_RUN = 1024  # digits in a row in a name, a comment or an attribute
# What the standard library reads as numbers (tarfile.PAX_NUMBER_FIELDS)
OF_NUMBERS = (b"atime", b"ctime", b"mtime", b"uid", b"gid", b"size")
ZEROS = bytes(1 << 20)


class Damaged(ValueError):
    """The stream is not a tar archive, or ends before it should."""


class Flow:
    """A stream of pieces that is read forward only."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.pieces, self.piece, self.at, self.before = pieces, memoryview(b""), 0, 0

    def tell(self) -> int:
        """Return how many bytes have been read."""
        return self.before + self.at

    def _more(self) -> bool:
        """Return whether a byte is left, and get the next piece if the last one is used up."""
        while self.at == len(self.piece):
            found = next(self.pieces, None)
            if found is None:
                return False
            self.before += len(self.piece)
            self.piece, self.at = memoryview(found), 0
        return True

    def read(self, count: int) -> bytes:
        """Return COUNT bytes of a header, fewer only at the end of the stream.

        Raise Damaged if COUNT is more than any header.
        """
        if count > MAX_HEADERS:
            raise Damaged(f"has a header of {count} bytes")
        if count <= len(self.piece) - self.at:
            self.at += count
            return bytes(self.piece[self.at - count : self.at])
        return b"".join(self.take(count))

    def take(self, count: int) -> Iterator[memoryview]:
        """Yield the next COUNT bytes as pieces, fewer only at the end of the stream."""
        while count > 0 and self._more():
            part = self.piece[self.at : self.at + count]
            self.at += len(part)
            count -= len(part)
            yield part

    def whole(self, count: int) -> memoryview | None:
        """Return the next COUNT bytes if the current piece holds them all, else None."""
        if count > len(self.piece) - self.at:
            return None
        self.at += count
        return self.piece[self.at - count : self.at]

    def skip(self, count: int) -> None:
        """Pass over COUNT bytes. Raise Damaged if the stream ends before."""
        if count <= len(self.piece) - self.at:
            self.at += count
            return
        for part in self.take(count):
            count -= len(part)
        if count > 0:
            raise Damaged("ends in the middle of a file")

    def drain(self) -> None:
        """Read to the end of the stream: whoever checks its digest does so there."""
        while self._more():
            self.at = len(self.piece)


class Header(tarfile.TarInfo):
    """A member of a tar, read by the standard library.

    Extended headers are bounded and checked first, since the library may take very long over
    crafted ones. `block` is the header as it came, if a packer may get it unchanged, else empty.
    """

    __slots__ = ("block",)

    def __init__(self, name: str = "") -> None:
        super().__init__(name)
        self.block = b""

    def _proc_gnulong(self, tar: Any) -> Any:
        if self.size > MAX_LONG_NAME:
            raise Damaged(f"has a name of {self.size} bytes")
        return super()._proc_gnulong(tar)  # type: ignore[misc]

    def _proc_pax(self, tar: Any) -> Any:
        """Check the size and form of a PAX header, and then let the library read it."""
        if self.size > MAX_PAX:
            raise Damaged(f"has a PAX header of {self.size} bytes; {MAX_PAX} are taken")
        given = tar.fileobj
        tar.fileobj = _Checked(given, self.size)
        try:
            found = super()._proc_pax(tar)  # type: ignore[misc]
        finally:
            tar.fileobj = given
        if len(tar.pax_headers) > MAX_GLOBAL or sum(map(len, tar.pax_headers.values())) > MAX_PAX:
            raise Damaged("has more global PAX headers than are taken")
        return found


class _Checked:
    """A tar's file whose first read, the body of a PAX header, is checked."""

    def __init__(self, file: Any, size: int) -> None:
        self.file, self.size, self.first = file, size, True

    def read(self, count: int) -> bytes:
        data: bytes = self.file.read(count)
        if self.first:
            self.first = False
            check_pax(data[: self.size])
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def check_pax(data: bytes) -> None:
    """Raise Damaged unless DATA consists of records `LENGTH KEY=VALUE`.

    The standard library then reads them in a time that grows only with their length.
    """
    # The standard library looks for `DIGITS hdrcharset=` from each digit of a run on.
    if re.search(rb"[0-9]{%d}" % (MAX_RUN + 1), data):
        raise Damaged("has a PAX header with an impossibly long number")
    at = 0
    while at < len(data) and data[at]:
        blank = data.find(b" ", at, at + 8)
        length = int(data[at:blank]) if blank > 0 and data[at:blank].isdigit() else 0
        record = data[blank + 1 : at + length]
        if (
            not length
            or at + length > len(data)
            or not record.endswith(b"\n")
            or not 0 < record.find(b"=") <= MAX_KEY
        ):
            raise Damaged("has an invalid PAX header")
        key, _, value = record.partition(b"=")
        is_read_as_number = key in OF_NUMBERS or key.startswith(b"GNU.sparse.")
        if is_read_as_number and any(
            len(run) > MAX_DIGITS for run in re.findall(rb"[0-9]+", value)
        ):
            raise Damaged("has a PAX header with an impossibly long number")
        at += length


class _Reader:
    """The part of a TarFile that TarInfo.fromtarfile uses; it bounds the headers of one member."""

    encoding, errors = "utf-8", "surrogateescape"

    def __init__(self, flow: Flow) -> None:
        self.flow, self.offset, self.taken, self.first = flow, 0, 0, b""
        self.fileobj: Any = self
        self.pax_headers: dict[str, str] = {}

    def read(self, count: int) -> bytes:
        self.taken += count
        if self.taken > MAX_HEADERS:
            raise Damaged(f"has a member whose headers are more than {MAX_HEADERS} bytes")
        if self.first:  # the block that `_next` has read, and found not to be plain
            first, self.first = self.first, b""
            return first
        return self.flow.read(count)

    def tell(self) -> int:
        return self.flow.tell()


class Members:
    """The members of one tar.

    A member's body can be read with `body` until the next member is asked for, and may be skipped.
    Raise Damaged for a stream that is not a tar, or ends too early.
    """

    def __init__(self, flow: Flow) -> None:
        self.flow, self.reader = flow, _Reader(flow)
        self.left = 0

    def __iter__(self) -> Iterator[Header]:
        while (member := self._next()) is not None:
            self.left = _stored_size(member)
            # Not tarfile's own offset of the next member, which is wrong for big sparse files.
            blocks = -(-self.left // BLOCK)
            end = self.flow.tell() + blocks * BLOCK
            yield member
            self.flow.skip(end - self.flow.tell())
        self.flow.drain()

    def _next(self) -> Header | None:
        """Read the header of the next member. Return None at the end of the archive."""
        try:
            self.reader.offset = self.flow.tell()
            self.reader.taken = 0
            block = self.flow.read(BLOCK)
            self.reader.first = block
            member = Header()
            # Global PAX headers hold for all members that follow, also for plain ones.
            if len(block) == BLOCK and not self.reader.pax_headers and read_plain(block, member):
                if passes_on(block, member):
                    member.block = block
                return member
            return Header.fromtarfile(cast(Any, self.reader))
        except (tarfile.EOFHeaderError, tarfile.EmptyHeaderError):  # type: ignore[attr-defined]
            return None
        except tarfile.TruncatedHeaderError:  # type: ignore[attr-defined]
            raise Damaged("ends in the middle of a header") from None
        except Damaged:
            raise
        except (tarfile.TarError, ValueError, OverflowError, RecursionError, IndexError) as error:
            raise Damaged(f"is not a tar archive: {error}") from None

    def body(self, member: tarfile.TarInfo) -> Iterable[memoryview | bytes]:
        """Return the content of the member that came last, in pieces; most files are one piece.

        The holes of a sparse file are filled with zeros.
        """
        if getattr(member, "sparse", None) is None:
            piece = self.flow.whole(self.left)
            if piece is not None:
                self.left = 0
                return (piece,) if piece else ()
        return self._pieces(member)

    def _pieces(self, member: tarfile.TarInfo) -> Iterator[memoryview | bytes]:
        """Yield the content of MEMBER; of a sparse file, zeros between its parts (offset, size)."""
        holes = cast("list[tuple[int, int]] | None", getattr(member, "sparse", None))
        if holes is None:
            yield from self._take_stored(self.left)
            return

        at = 0
        for offset, size in holes:
            if offset < at or offset + size > member.size:
                raise Damaged(f"has a sparse file that makes no sense: {member.name}")
            yield from _zeros(offset - at)
            yield from self._take_stored(size)
            at = offset + size
        yield from _zeros(member.size - at)

    def _take_stored(self, count: int) -> Iterator[memoryview]:
        """Yield the next COUNT bytes of the body. Raise Damaged if it has fewer."""
        self.left -= count
        if self.left < 0:
            raise Damaged("has a sparse file that is longer than its data")
        for part in self.flow.take(count):
            count -= len(part)
            yield part
        if count:
            raise Damaged("ends in the middle of a file")


def _zeros(count: int) -> Iterator[bytes]:
    """Yield COUNT zeros, in pieces."""
    while count > 0:
        yield ZEROS[:count] if count < len(ZEROS) else ZEROS
        count -= len(ZEROS)


def _stored_size(member: tarfile.TarInfo) -> int:
    """Return how many bytes the body of MEMBER takes in the archive: without a sparse file's holes.

    Raise Damaged for a size that is negative, or too large to be meant.
    """
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
