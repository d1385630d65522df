"""Layers uncompressed as they arrive: gzip by ISA-L, zstd by libzstd, in threads that work ahead of
the reader.

Both libraries, like sha256 and the system's reads and writes, work without Python's lock, so
threads are enough.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import queue
import sys
import threading
from typing import TYPE_CHECKING, cast

from hpcstack.oci.tar import Damaged

if TYPE_CHECKING:
    from collections.abc import Iterator

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
PIECE = 4 << 20
AHEAD = 10  # pieces of at most PIECE bytes


def inflate_layer(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The bytes of a layer as a tar, whatever it is compressed with; its media type may lie, its
    first bytes do not.
    """
    first = next(pieces, b"")
    while len(first) < 4 and (more := next(pieces, b"")):
        first += more
    if first.startswith(GZIP):
        return _gzip(first, pieces)
    if first.startswith(ZSTD):
        return _zstd(first, pieces)
    return _plain(first, pieces)


def _plain(first: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from pieces


def _gzip(first: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """All members of a gzip file: eStargz and pigz write many."""
    from isal import isal_zlib

    faults = cast("type[Exception]", isal_zlib.error)
    stream = isal_zlib.decompressobj(31)
    data = first
    try:
        while True:
            if stream.eof:
                rest = stream.unused_data or data
                while not rest and (more := next(pieces, b"")):
                    rest = more
                if not rest.strip(b"\0"):  # the end, or padding after it
                    rest = next((piece for piece in pieces if piece.strip(b"\0")), b"")
                    if not rest:
                        return
                stream, data = isal_zlib.decompressobj(31), rest
            out = stream.decompress(data, PIECE)
            data = stream.unconsumed_tail
            if out:
                yield out
            if not data and not stream.eof:
                data = next(pieces, b"")
                if not data:
                    raise Damaged("ends in the middle of its gzip stream")
            elif stream.eof:
                data = b""
    except faults as error:
        raise Damaged(f"is damaged: {error}") from None


def _zstd(first: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """All frames of a zstd file; what a few bytes become is given out piece by piece."""
    stream = None
    try:
        for piece in itertools.chain([first], pieces):
            rest = piece
            while rest or (stream and not stream.needs_input):
                stream = stream or zstd.ZstdDecompressor()
                if out := stream.decompress(rest, PIECE):
                    yield out
                rest = stream.unused_data if stream.eof else b""
                stream = None if stream.eof else stream
    except zstd.ZstdError as error:
        raise Damaged(f"is damaged: {error}") from None
    if stream is not None:
        raise Damaged("ends in the middle of its zstd stream")


def check_pieces(pieces: Iterator[bytes], digest: str, what: str) -> Iterator[bytes]:
    """PIECES; Damaged at the end if their sha256 is not DIGEST (`sha256:...`; empty for unknown)."""
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
        yield piece
    if digest and f"sha256:{found.hexdigest()}" != digest:
        raise Damaged(f"has other bytes than {what} names")


class Ahead:
    """An iterator over PIECES that a thread fetches ahead; `close` ends the thread."""

    def __init__(self, pieces: Iterator[bytes], ahead: int = AHEAD) -> None:
        self.queue: queue.Queue[bytes | BaseException | None] = queue.Queue(maxsize=ahead)
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._work, args=(pieces,), daemon=True)
        self.thread.start()

    def _work(self, pieces: Iterator[bytes]) -> None:
        try:
            for piece in pieces:
                if not self._put(piece):
                    return
            self._put(None)
        except BaseException as error:  # the reader raises it
            self._put(error)

    def _put(self, thing: bytes | BaseException | None) -> bool:
        while not self.ended.is_set():
            with contextlib.suppress(queue.Full):
                self.queue.put(thing, timeout=0.5)
                return True
        return False

    def __iter__(self) -> Iterator[bytes]:
        while True:
            found = self.queue.get()
            if found is None:
                return
            if isinstance(found, BaseException):
                raise found
            yield found

    def close(self) -> None:
        self.ended.set()
        with contextlib.suppress(queue.Empty):
            while True:
                self.queue.get_nowait()
        self.thread.join(timeout=30)
