"""Uncompress layers as they arrive, in threads that work ahead of the reader.

gzip is read by ISA-L, zstd by libzstd. Both libraries release Python's global lock while they work,
as sha256 and reads and writes do, so threads are enough.

Tested in tests/unit/oci/test_importer.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import queue
import re
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
# A zstd frame to be skipped, as pzstd begins a file with: 0x184D2A50 to 0x184D2A5F (RFC 8878, 3.1.2)
SKIPPED = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
PIECE = 4 << 20
AHEAD = 10  # pieces of at most PIECE bytes that may wait for the reader


def inflate_layer(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the tar in PIECES, a layer that may be compressed with gzip, zstd or not at all.

    Its first bytes decide, since a media type may be wrong. Raise Damaged if the layer cannot be
    uncompressed, or ends too early.
    """
    first = next(pieces, b"")
    while len(first) < 4:
        more = next(pieces, b"")
        if not more:
            break
        first += more

    if first.startswith(GZIP):
        return _gzip(first, pieces)
    if first.startswith(ZSTD) or SKIPPED.match(first):
        return _zstd(first, pieces)
    return _plain(first, pieces)


def _plain(first: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from pieces


def _gzip(first: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Uncompress a gzip file, which may have many members: eStargz and pigz write such."""
    from isal import isal_zlib

    faults = cast("type[Exception]", isal_zlib.error)
    stream = isal_zlib.decompressobj(31)
    data = first
    try:
        while True:
            if stream.eof:  # a member ended: another one follows, or padding, or nothing
                rest = stream.unused_data or data
                while not rest and (more := next(pieces, b"")):
                    rest = more
                if not rest.strip(b"\0"):
                    rest = next((piece for piece in pieces if piece.strip(b"\0")), b"")
                    if not rest:
                        return
                stream = isal_zlib.decompressobj(31)
                data = rest

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
    """Uncompress all frames of a zstd file, at most PIECE bytes at a time.

    A few bytes may become very many; without that limit they would be in memory at once.
    """
    stream = None
    try:
        for piece in itertools.chain([first], pieces):
            rest = piece
            while rest or (stream and not stream.needs_input):
                stream = stream or zstd.ZstdDecompressor()
                out = stream.decompress(rest, PIECE)
                if out:
                    yield out
                rest = b""
                if stream.eof:  # the next frame needs a decompressor of its own
                    rest = stream.unused_data
                    stream = None
    except zstd.ZstdError as error:
        raise Damaged(f"is damaged: {error}") from None
    if stream is not None:
        raise Damaged("ends in the middle of its zstd stream")


def check_pieces(pieces: Iterator[bytes], digest: str, what: str) -> Iterator[bytes]:
    """Yield PIECES, and raise Damaged at their end if their sha256 is not DIGEST.

    An empty DIGEST is not checked. WHAT is the document that names it.
    """
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
        yield piece
    if digest and f"sha256:{found.hexdigest()}" != digest:
        raise Damaged(f"has other bytes than {what} names")


class Ahead:
    """An iterator over PIECES, of which a thread reads up to AHEAD in advance.

    `close` ends the thread.
    """

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
        except BaseException as error:  # raised again in the reader's thread, by __iter__
            self._put(error)

    def _put(self, thing: bytes | BaseException | None) -> bool:
        """Queue a piece, an error, or None for the end. Return False once `close` was called."""
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
        """End the thread, and drop what it has read."""
        self.ended.set()
        with contextlib.suppress(queue.Empty):  # a full queue would keep the thread waiting
            while True:
                self.queue.get_nowait()
        self.thread.join(timeout=30)
