"""A derived image in the time of a copy: a SquashFS of a base and layers that keeps the base's
compressed bytes.

What a base holds before its table of inodes (data and fragments) is cloned or copied. The layers'
data follow. The tables of inodes and of folders begin with the base's own compressed blocks, of
which only the last is opened again; behind them come the new inodes and the folders that changed,
the root last. So every reference of the base stays valid, and the work is in proportion to the
change. The small tables are written anew.

What a layer deletes stays in the file, as bytes that nothing names: to be rid of a secret, pack
anew (`--squash`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from hpcstack.squashfs.codec import METADATA, Unreadable
from hpcstack.squashfs.copy import copy_bytes, write_all
from hpcstack.squashfs.inode import STORED
from hpcstack.squashfs.kept import HEAD, Keeping
from hpcstack.squashfs.read import NO_XATTRS, NOWHERE, Squashfs, Superblock
from hpcstack.squashfs.table import explain_damage
from hpcstack.squashfs.tree import Merged
from hpcstack.squashfs.write import Writer, packed_block

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

PADDED = 4096  # a file is filled up to a multiple of this: loop devices want it
MARK = b"hpcstack-splice\n"  # what the filling of a spliced file begins with
MAX_DEPTH, MAX_DEAD = 8, 0.25  # beyond these an image is packed anew
PIECE = 1 << 20
BASE = re.compile(r"[0-9a-f]{64}")


class TooMuchDead(Unreadable):
    """It can be spliced, and is better packed anew."""


@dataclass(frozen=True)
class Spliced:
    """What a spliced file says of itself, in its filling.

    Its bytes from 96 to `kept` are those of a file whose superblock and tables have the sha256
    `base`; `depth` says how often a spliced file was spliced again, and at most `dead` bytes are no
    file's any more.
    """

    base: str
    kept: int
    depth: int
    dead: int


@dataclass(frozen=True)
class Result:
    """SHA256 and SIZE of the whole file, HOW its base's bytes came (`copy_bytes`), and how many
    bytes are NEW.
    """

    sha256: str
    size: int
    how: str
    new: int
    about: Spliced


def splice_image(
    base: Path,
    layers: Sequence[Path],
    output: Path,
    time: int,
    *,
    always: bool = False,
    rooted: bool = False,
) -> Result:
    """BASE with LAYERS (squashfs files of upper folders, the oldest first) over it as the file
    OUTPUT, on disk.

    ROOTED: every file of it is root's, the base's too: all that takes is another table of ids. The
    same base and layers give the same bytes; TIME is the image's own, in seconds. Unreadable where
    the base cannot be spliced; TooMuchDead where that would be unwise, unless ALWAYS.
    """
    with ExitStack() as stack:
        image = stack.enter_context(Squashfs(base))
        above = [stack.enter_context(Squashfs(layer)) for layer in layers]
        for layer in above:
            if (layer.super.compressor, layer.super.block_size) != (
                image.super.compressor,
                image.super.block_size,
            ):
                raise Unreadable("a layer is packed in another way than the base")
        merged = Merged(image, above)
        about = _about(image, merged)
        if not always and (about.depth > MAX_DEPTH or about.dead > MAX_DEAD * about.kept):
            raise TooMuchDead(
                f"{about.dead / 1e6:.0f} MB of it would be no file's, spliced {about.depth} times"
            )
        with explain_damage():
            if any(
                start + (size & ~STORED) > image.super.inode_table
                for start, size, _ in image.fragments()
            ):
                raise Unreadable("a fragment of the base lies in its tables")
            writer = Writer(merged)
        if rooted:
            writer.ids = [0] * len(writer.ids)
        return _write(image, above, writer, about, output, time)


def all_root(path: Path) -> bool:
    """Whether every file of the image PATH is root's."""
    with Squashfs(path) as image:
        return not any(image.ids)


def read_splice(path: Path) -> Spliced | None:
    """What the file PATH says of itself; None where it was not spliced. Its tables are not read."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        head = os.pread(file, HEAD, 0)
        return (
            _said(file, Superblock(*Superblock.FORMAT.unpack(head)).used)
            if len(head) == HEAD
            else None
        )
    finally:
        os.close(file)


def _said(file: int, used: int) -> Spliced | None:
    """What stands in the filling of FILE, behind its USED bytes."""
    if used > os.fstat(file).st_size:
        return None
    text = os.pread(file, PADDED, used)
    if not text.startswith(MARK):
        return None
    try:
        found = json.loads(text[len(MARK) :].split(b"\0", 1)[0])
        said = Spliced(
            str(found["base"]), int(found["kept"]), int(found["depth"]), int(found["dead"])
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    good = (
        HEAD <= said.kept <= used
        and said.depth > 0
        and said.dead >= 0
        and BASE.fullmatch(said.base)
    )
    return said if good else None


def _about(image: Squashfs, merged: Merged) -> Spliced:
    before = _said(image.file, image.super.used)
    tables = image.super.used - image.super.inode_table
    digest = hashlib.sha256(image.super.pack())
    for at in range(0, tables, PIECE):
        digest.update(os.pread(image.file, min(PIECE, tables - at), image.super.inode_table + at))
    return Spliced(
        digest.hexdigest(),
        image.super.inode_table,
        before.depth + 1 if before else 1,
        merged.dead_bytes() + (before.dead if before else 0),
    )


def _write(
    image: Squashfs, above: list[Squashfs], writer: Writer, about: Spliced, output: Path, time: int
) -> Result:
    superblock, tables = _tables(image, writer, time)
    filling = _filling(about, superblock.used)
    kept = image.super.inode_table
    file = os.open(output, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    digest = hashlib.sha256(superblock.pack())
    try:
        with Keeping(image.file, kept, file, output, digest) as base:
            at = kept
            for piece in writer.data.pieces:
                if isinstance(piece, bytes):
                    write_all(file, piece, at)
                    at += len(piece)
                else:
                    layer, start, size = piece
                    copy_bytes(above[layer].file, start, file, at, size)
                    at += size
            for data in (*tables, filling):
                write_all(file, data, at)
                at += len(data)
            os.fsync(file)
            base.finish()
        write_all(
            file, superblock.pack(), 0
        )  # last: until now it was no image, but its base's beginning
        os.fsync(file)
        place = kept
        while data := os.pread(file, PIECE, place):
            digest.update(data)
            place += len(data)
    finally:
        os.close(file)
    return Result(digest.hexdigest(), place, base.how, place - kept, about)


def _filling(about: Spliced, used: int) -> bytes:
    text = MARK + json.dumps(asdict(about), sort_keys=True).encode() + b"\0"
    return text + bytes(-(used + len(text)) % PADDED)


def _tables(
    image: Squashfs, writer: Writer, time: int
) -> tuple[Superblock, list[bytes | memoryview]]:
    """The superblock, and all that follows the data."""
    out: list[bytes | memoryview] = []
    at = writer.data.end

    def add(*data: bytes | memoryview) -> int:
        nonlocal at
        began = at
        for one in data:
            out.append(one)
            at += len(one)
        return began

    def indexed(layout: str, rows: Iterable[tuple[int, ...]], head: bytes = b"") -> int:
        """A table of ROWS: its blocks, then HEAD and where each block lies.

        Where the HEAD begins.
        """
        data = b"".join(struct.pack(layout, *row) for row in rows)
        blocks = [data[start : start + METADATA] for start in range(0, len(data), METADATA)]
        places = [add(packed_block(block, image.codec)) for block in blocks]
        return add(head, struct.pack(f"<{len(places)}Q", *places))

    inode_table = add(writer.inodes.kept, writer.inodes.end())
    folder_table = add(writer.folders.kept, writer.folders.end())
    fragment_table = export_table = xattr_table = NOWHERE
    if writer.fragments:
        fragment_table = indexed("<QII", writer.fragments)
    if writer.exported is not None:
        export_table = indexed("<Q", ((one,) for one in writer.exported))
    id_table = indexed("<I", [(one,) for one in writer.ids])
    if writer.sets:
        keys = add(writer.keys.kept, writer.keys.end())
        xattr_table = indexed("<QII", writer.sets, struct.pack("<QII", keys, len(writer.sets), 0))
    flags = image.super.flags & ~(NO_XATTRS if writer.sets else 0)
    return replace(
        image.super,
        inodes=writer.merged.count,
        time=time,
        fragments=len(writer.fragments),
        flags=flags,
        ids=len(writer.ids),
        root=writer.root,
        used=at,
        id_table=id_table,
        xattr_table=xattr_table,
        inode_table=inode_table,
        folder_table=folder_table,
        fragment_table=fragment_table,
        export_table=export_table,
    ), out
