"""The compressors of SquashFS, for blocks of metadata (8 KiB) and of data (at most 1 MiB).

gzip, xz and lzma are Python's own, and zstd has a binding. lz4 and lzo are called directly in the
libraries that mksquashfs is linked with: no binding of them is maintained as well as these.

Tested in tests/unit/squashfs/test_splice.py and tests/unit/squashfs/test_lookup.py.
"""

from __future__ import annotations

import ctypes
import lzma
import struct
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

METADATA = 8192  # bytes of a metadata block, uncompressed
GZIP, LZMA, LZO, XZ, LZ4, ZSTD = 1, 2, 3, 4, 5, 6
NAMES = {GZIP: "gzip", LZMA: "lzma", LZO: "lzo", XZ: "xz", LZ4: "lz4", ZSTD: "zstd"}
MEMORY = 64 << 20  # bytes that xz may take for one block
Expand = Callable[[bytes, int], bytes]  # (data, the bytes that it may become)
Pack = Callable[[bytes], bytes]


class Unreadable(Exception):
    """A file is not a SquashFS that can be read.

    It is damaged, crafted to do harm, or of an unknown kind. The message says why, without the
    file's name.
    """


@dataclass(frozen=True)
class Codec:
    """One compressor.

    `expand` raises Unreadable for damaged data, and for what becomes larger than it may. `pack` may
    return more bytes than it got.
    """

    name: str
    expand: Expand
    pack: Pack


def find_codec(number: int) -> Codec:
    """Return the compressor that has this NUMBER in a superblock.

    Raise Unreadable for one that is unknown, or whose library is not installed.
    """
    if number not in NAMES:
        raise Unreadable(f"the compressor {number} is not known")
    try:
        expand, pack = TABLE[number]()
    except OSError as error:
        raise Unreadable(f"the library of {NAMES[number]} is not installed: {error}") from None
    return Codec(NAMES[number], _bound(expand), pack)


def _bound(expand: Expand) -> Expand:
    """Return EXPAND with its errors turned into Unreadable, and its limit enforced."""

    def bounded(data: bytes, limit: int) -> bytes:
        try:
            out = expand(data, limit)
        except (zlib.error, lzma.LZMAError, zstd.ZstdError, EOFError, ValueError) as error:
            raise Unreadable(f"a block is damaged: {error}") from None
        if len(out) > limit:
            raise Unreadable(f"a block becomes larger than {limit} bytes")
        return out

    return bounded


def _gzip() -> tuple[Expand, Pack]:
    def expand(data: bytes, limit: int) -> bytes:
        # One byte more than the limit, here and below: so what is too large is noticed.
        return zlib.decompressobj().decompress(data, limit + 1)

    return expand, lambda data: zlib.compress(data, 9)


def _xz() -> tuple[Expand, Pack]:
    def expand(data: bytes, limit: int) -> bytes:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY).decompress(data, limit + 1)

    # The kernel knows no check but CRC32, and no dictionary larger than the image's options say.
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": METADATA}]

    def pack(data: bytes) -> bytes:
        return lzma.compress(data, lzma.FORMAT_XZ, lzma.CHECK_CRC32, filters=filters)

    return expand, pack


def _lzma() -> tuple[Expand, Pack]:
    def expand(data: bytes, limit: int) -> bytes:
        return lzma.LZMADecompressor(lzma.FORMAT_ALONE, memlimit=MEMORY).decompress(data, limit + 1)

    # New blocks are stored uncompressed: Python does not write the size into lzma's header, which
    # mksquashfs does.
    return expand, lambda data: data


def _zstd() -> tuple[Expand, Pack]:
    def expand(data: bytes, limit: int) -> bytes:
        return zstd.ZstdDecompressor().decompress(data, limit + 1)

    return expand, lambda data: zstd.compress(data, 3)


def _lz4() -> tuple[Expand, Pack]:
    library = ctypes.CDLL("liblz4.so.1")

    def expand(data: bytes, limit: int) -> bytes:
        out = ctypes.create_string_buffer(limit)
        size = library.LZ4_decompress_safe(data, out, len(data), limit)
        if size < 0:
            raise ValueError("lz4")  # `_bound` makes it Unreadable
        return out.raw[:size]

    def pack(data: bytes) -> bytes:
        out = ctypes.create_string_buffer(2 * len(data) + 64)
        size = library.LZ4_compress_default(data, out, len(data), len(out))
        return out.raw[:size] if size > 0 else data

    return expand, pack


def _lzo() -> tuple[Expand, Pack]:
    library = ctypes.CDLL("liblzo2.so.2")

    def expand(data: bytes, limit: int) -> bytes:
        out, size = ctypes.create_string_buffer(limit), ctypes.c_size_t(limit)
        status = library.lzo1x_decompress_safe(
            data, ctypes.c_size_t(len(data)), out, ctypes.byref(size), None
        )
        if status:
            raise ValueError(f"lzo {status}")
        return out.raw[: size.value]

    return expand, lambda data: data  # new blocks are stored uncompressed


TABLE: dict[int, Callable[[], tuple[Expand, Pack]]] = {
    GZIP: _gzip, LZMA: _lzma, LZO: _lzo, XZ: _xz, LZ4: _lz4, ZSTD: _zstd,
}  # fmt: skip


def list_codec_options(number: int, data: bytes) -> list[str]:
    """Return mksquashfs's options for packing a layer for an image with the compressor NUMBER.

    DATA are the compressor's options as they lie after the image's superblock. Layers must be
    readable with them: the kernel takes the size of xz's dictionary from there.
    https://dr-emann.github.io/squashfs/#_compression_options
    """
    words = ["-comp", NAMES[number]]
    if number == ZSTD:
        return [*words, "-Xcompression-level", "1"]
    if number == XZ and len(data) >= struct.calcsize("<II"):
        return [*words, "-Xdict-size", str(struct.unpack_from("<I", data)[0])]
    return words
