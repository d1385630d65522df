"""Compress a layer, in several threads, and hash it on the way.

The layer is gzip, which every tool reads: a row of members of 4 MiB each, which together are one
gzip file (RFC 1952, 2.2). The same bytes give the same file, however many threads there are.

Tested in tests/unit/oci/test_delta_layer.py.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MEMBER = 4 << 20  # bytes of the plain layer in each gzip member
LEVEL = 6  # as gzip has it by default
MOST_JOBS = 16  # threads: a login node has others to serve, and each takes 8 MiB
GZIP = 31  # window bits of zlib for a gzip header


@dataclass(frozen=True)
class CompressedLayer:
    """A compressed layer: the digest and size of its bytes, and the digest of the plain tar."""

    digest: str
    size: int
    plain_digest: str
    plain_size: int


def compress_layer(
    pieces: Iterable[bytes], output: BinaryIO, on_bytes: Callable[[int], None] = lambda _: None
) -> CompressedLayer:
    """Write PIECES, a tar, to OUTPUT as gzip. ON_BYTES is told how many plain bytes are done."""
    plain, packed = hashlib.sha256(), hashlib.sha256()
    plain_size = size = 0
    jobs = min(MOST_JOBS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(jobs) as pool:
        waiting: deque[Future[bytes]] = deque()

        def write_first() -> None:
            nonlocal size
            data = waiting.popleft().result()
            packed.update(data)
            output.write(data)
            size += len(data)

        for part in _cut(pieces):
            plain.update(part)
            plain_size += len(part)
            waiting.append(pool.submit(_compress, part))
            if len(waiting) > jobs:
                write_first()
            on_bytes(plain_size)
        while waiting:
            write_first()
    return CompressedLayer(
        f"sha256:{packed.hexdigest()}", size, f"sha256:{plain.hexdigest()}", plain_size
    )


def _compress(part: bytes) -> bytes:
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, GZIP)
    return packer.compress(part) + packer.flush()


def _cut(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes of PIECES in parts of MEMBER bytes; the last one may be shorter."""
    gathered = bytearray()
    for piece in pieces:
        gathered += piece
        while len(gathered) >= MEMBER:
            yield bytes(gathered[:MEMBER])
            del gathered[:MEMBER]
    if gathered:
        yield bytes(gathered)
