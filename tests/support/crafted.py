"""SquashFS files made to do harm, from their tables on: no packer writes such."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path

BLOCK = 8192
HEAD = struct.Struct("<5I6H8Q")
NOWHERE = 0xFFFFFFFFFFFFFFFF


def folder(number: int, size: int, parent: int = 1) -> bytes:
    """The inode of a folder whose listing, of SIZE bytes, is the first."""
    return struct.pack("<4H2I", 1, 0o755, 0, 0, 0, number) + struct.pack(
        "<2I2HI", 0, 2, (size + 3) & 0xFFFF, 0, parent
    )


def large_folder(number: int, size: int, parent: int = 1) -> bytes:
    """The same, where the SIZE takes more than two bytes."""
    head = struct.pack("<4H2I", 8, 0o755, 0, 0, 0, number)
    return head + struct.pack("<4I2HI", 2, size + 3, 0, parent, 0, 0, 0xFFFFFFFF)


def listing(names: list[tuple[bytes, int, int, int]]) -> bytes:
    """(name, inode's number, its offset, its kind) under headers; all inodes in the first block."""
    out = bytearray()
    for at in range(0, len(names), 256):
        group = names[at : at + 256]
        out += struct.pack("<3I", len(group) - 1, 0, 1)
        for name, number, offset, kind in group:
            out += struct.pack("<HhHH", offset, min(number - 1, 30000), kind, len(name) - 1) + name
    return bytes(out)


def blocks_of(data: bytes) -> tuple[bytes, list[int]]:
    """DATA as blocks of metadata, and where each begins."""
    out, places = bytearray(), []
    for at in range(0, len(data), BLOCK):
        packed = zlib.compress(data[at : at + BLOCK], 6)
        places.append(len(out))
        out += struct.pack("<H", len(packed)) + packed
    return bytes(out), places


@dataclass
class Crafted:
    """What the tables of a file hold, uncompressed; the root is the inode at offset ROOT of the
    first block.
    """

    inodes: bytes
    folders: bytes
    fragments: bytes = b""
    exported: bytes = b""
    root: int = 0
    count: int = 10
    hole: int = 0  # bytes of nothing behind each table
    block_log: int = 17
    ids: bytes = field(default_factory=lambda: struct.pack("<I", 0))

    def write(self, path: Path) -> Path:
        with path.open("wb") as file:
            at = HEAD.size

            def put(data: bytes) -> int:
                nonlocal at
                began = at
                file.seek(at)
                file.write(data)
                at += len(data) + self.hole
                return began

            def indexed(data: bytes) -> int:
                packed, places = blocks_of(data)
                began = put(packed)
                return put(b"".join(struct.pack("<Q", began + place) for place in places))

            inode_table = put(blocks_of(self.inodes)[0])
            folder_table = put(blocks_of(self.folders)[0])
            fragment_table = indexed(self.fragments) if self.fragments else NOWHERE
            export_table = indexed(self.exported) if self.exported else NOWHERE
            id_table = indexed(self.ids)
            at += -at % 4096
            file.seek(0)
            file.write(
                HEAD.pack(
                    0x73717368, self.count, 0, 1 << self.block_log, len(self.fragments) // 16, 1, self.block_log, 0x200,
                    len(self.ids) // 4, 4, 0, self.root, at, id_table, NOWHERE, inode_table, folder_table,
                    fragment_table, export_table,
                )
            )  # fmt: skip
            file.truncate(at)
        return path
