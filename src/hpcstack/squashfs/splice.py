"""Splice a base and layers into one SquashFS that keeps the base's compressed bytes.

That takes about the time of a copy.

A spliced file consists of:

1. the data and fragments of the base, which are cloned or copied;
2. the data of the layers;
3. the tables of inodes and of folders. Each begins with the base's own compressed blocks, of which
   only the last is opened again. The new inodes and the folders that changed follow, the root last.
   So every reference in the base stays valid, and the work is in proportion to the change;
4. the small tables, which are written anew.

What a layer deletes from the base stays in the file, as bytes that nothing refers to. To be rid of
a secret, pack the image anew (`--squash`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from hpcstack.squashfs.codec import Unreadable
from hpcstack.squashfs.copy import copy_bytes, write_all
from hpcstack.squashfs.inode import STORED
from hpcstack.squashfs.kept import HEAD, Keeping
from hpcstack.squashfs.read import Squashfs, Superblock
from hpcstack.squashfs.table import explain_damage
from hpcstack.squashfs.tree import Merged
from hpcstack.squashfs.write import PADDED, Writer, make_tables

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MARK = b"hpcstack-splice\n"  # begins the padding of a spliced file
# An image is packed anew if it would be spliced more often than this, or if more than this fraction
# of the base's data would be dead.
MAX_DEPTH, MAX_DEAD = 8, 0.25
PIECE = 1 << 20
BASE = re.compile(r"[0-9a-f]{64}")


class TooMuchDead(Unreadable):
    """The image could be spliced, but had better be packed anew: too much of it is dead, or its
    chain of splices is too long.
    """


@dataclass(frozen=True)
class Spliced:
    """What a spliced file says of itself, in its padding."""

    base: str  # sha256 of the base's superblock and tables
    kept: int  # the base's own bytes end here; they begin behind the superblock
    depth: int  # how often it was spliced, counting its base's splices
    dead: int  # at most so many bytes belong to no file any more


@dataclass(frozen=True)
class Result:
    """A file that was spliced."""

    sha256: str
    size: int
    how: str  # how the base's bytes were copied (`Keeping.how`)
    new: int  # bytes behind the base's
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
    """Write BASE with LAYERS over it as the file OUTPUT, and sync it to disk.

    LAYERS are squashfs files of overlayfs's upper folders, oldest first. TIME is the image's own,
    in seconds since 1970. The same base, layers and time give the same bytes. With ROOTED, every
    file belongs to root, also the base's: that takes only another table of ids.

    Raise Unreadable if the base cannot be spliced. Unless ALWAYS, raise TooMuchDead if it should
    not be.
    """
    with ExitStack() as stack:
        image = stack.enter_context(Squashfs(base))
        above = [stack.enter_context(Squashfs(layer)) for layer in layers]
        packed_as = (image.super.compressor, image.super.block_size)
        for layer in above:
            if (layer.super.compressor, layer.super.block_size) != packed_as:
                raise Unreadable("a layer is packed in another way than the base")

        merged = Merged(image, above)
        about = _describe_splice(image, merged)
        if not always and (about.depth > MAX_DEPTH or about.dead > MAX_DEAD * about.kept):
            raise TooMuchDead(
                f"{about.dead / 1e6:.0f} MB of it would be no file's, spliced {about.depth} times"
            )
        with explain_damage():
            for start, size, _ in image.fragments():
                if start + (size & ~STORED) > image.super.inode_table:
                    raise Unreadable("a fragment of the base lies in its tables")
            writer = Writer(merged)
        if rooted:
            writer.ids = [0] * len(writer.ids)
        return _write(image, above, writer, about, output, time)


def belongs_to_root(path: Path) -> bool:
    """Return whether every file of the image PATH belongs to root."""
    with Squashfs(path) as image:
        return not any(image.ids)


def read_splice(path: Path) -> Spliced | None:
    """Return what the file PATH says of itself; None if it was not spliced.

    Its tables are not read.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        head = os.pread(file, HEAD, 0)
        if len(head) != HEAD:
            return None
        superblock = Superblock(*Superblock.FORMAT.unpack(head))
        return _read_padding(file, superblock.used)
    finally:
        os.close(file)


def _read_padding(file: int, used: int) -> Spliced | None:
    """Return what the padding of FILE, behind its USED bytes, says; None for nothing valid."""
    if used > os.fstat(file).st_size:
        return None
    text = os.pread(file, PADDED, used)
    if not text.startswith(MARK):
        return None
    try:
        found = json.loads(text[len(MARK) :].split(b"\0", 1)[0])
        about = Spliced(
            str(found["base"]), int(found["kept"]), int(found["depth"]), int(found["dead"])
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    if not HEAD <= about.kept <= used or about.depth <= 0 or about.dead < 0:
        return None
    if not BASE.fullmatch(about.base):
        return None
    return about


def _describe_splice(image: Squashfs, merged: Merged) -> Spliced:
    """Return what the file will say of itself that IMAGE, as MERGED, is spliced to."""
    depth = 1
    dead = merged.dead_bytes()
    before = _read_padding(image.file, image.super.used)
    if before:
        depth += before.depth
        dead += before.dead

    return Spliced(digest_tables(image), image.super.inode_table, depth, dead)


def digest_tables(image: Squashfs) -> str:
    """Return the sha256, in hex, of the superblock and the tables of IMAGE."""
    tables = image.super.used - image.super.inode_table
    digest = hashlib.sha256(image.super.pack())
    for at in range(0, tables, PIECE):
        digest.update(os.pread(image.file, min(PIECE, tables - at), image.super.inode_table + at))
    return digest.hexdigest()


def is_spliced_on(image: Squashfs, base: Squashfs) -> bool:
    """Return whether IMAGE says that it was spliced from BASE itself.

    Then BASE's data and tables are in it, each at the same place.
    """
    about = _read_padding(image.file, image.super.used)
    if about is None or about.kept != base.super.inode_table:
        return False
    return about.base == digest_tables(base)


def _write(
    image: Squashfs, above: list[Squashfs], writer: Writer, about: Spliced, output: Path, time: int
) -> Result:
    """Write the spliced file, and hash it on the way.

    The base's data are copied and hashed in threads, while what follows them is written here.
    """
    superblock, tables = make_tables(image, writer, time)
    padding = _pad(about, superblock.used)
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
            for data in (*tables, padding):
                write_all(file, data, at)
                at += len(data)
            os.fsync(file)
            base.finish()

        # Last, when all else is on disk. Until now the file has its base's superblock, which points
        # to tables that are not there, so nobody takes it for an image.
        write_all(file, superblock.pack(), 0)
        os.fsync(file)

        place = kept
        while data := os.pread(file, PIECE, place):
            digest.update(data)
            place += len(data)
    finally:
        os.close(file)
    return Result(digest.hexdigest(), place, base.how, place - kept, about)


def _pad(about: Spliced, used: int) -> bytes:
    """Return the padding of a file that has USED bytes, with ABOUT in it."""
    text = MARK + json.dumps(asdict(about), sort_keys=True).encode() + b"\0"
    return text + bytes(-(used + len(text)) % PADDED)
