"""Find a file in a SquashFS by its path, as a process with the image as its root, and read it."""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING

from hpcstack.squashfs.codec import Unreadable
from hpcstack.squashfs.inode import DIR, FILE, LINK, NONE, STORED
from hpcstack.squashfs.table import explain_damage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcstack.squashfs.inode import Inode
    from hpcstack.squashfs.read import Squashfs

LINKS = 40  # symbolic links that Linux follows in one path


class MoreThanAsked(Unreadable):
    """A file is larger than the limit that was given."""


def find_inode(image: Squashfs, path: str, *, follow: bool = True) -> Inode | None:
    """Return the inode of PATH in IMAGE, or None if there is nothing.

    Links among its folders are followed, and a link at its end if FOLLOW. Raise Unreadable if the
    image is damaged.
    """
    way = [image.root()]  # the folders from the root to here, for `..`
    parts = deque(_parts(os.fsencode(path)))
    links = 0
    while parts:
        name = parts.popleft()
        if name == b"..":
            del way[max(1, len(way) - 1) :]  # above the root is the root
            continue
        if way[-1].kind != DIR:
            return None
        entry = image.entry(way[-1], name)
        if entry is None:
            return None

        found = image.inode(entry.reference)
        if found.kind == LINK and (parts or follow):
            links += 1
            if links > LINKS:
                return None
            if found.target.startswith(b"/"):
                del way[1:]
            parts.extendleft(reversed(_parts(found.target)))
        else:
            way.append(found)
    return way[-1]


def _parts(path: bytes) -> list[bytes]:
    """Return the names in PATH, without empty ones and `.`."""
    return [part for part in path.split(b"/") if part not in (b"", b".")]


def read_content(image: Squashfs, file: Inode, limit: int) -> bytes:
    """Return the content of FILE.

    Raise MoreThanAsked if it has more than LIMIT bytes, Unreadable if it is not a regular file, or
    not whole.
    """
    if file.kind != FILE:
        raise Unreadable("it is no file")
    if file.size > limit:
        raise MoreThanAsked(f"it is larger than {limit >> 20} MiB")
    with explain_damage():
        out = b"".join(stream_content(image, file))
    if len(out) != file.size:
        raise Unreadable("a file is shorter than it should be")
    return out


def stream_content(image: Squashfs, file: Inode) -> Iterator[bytes]:
    """Yield the content of the regular FILE block by block, and then its tail.

    Raise Unreadable where a block is damaged.
    """
    at = file.start
    left = file.size
    whole = image.super.block_size
    for stored in file.blocks:
        size = stored & ~STORED
        due = min(left, whole)
        if size > whole:
            raise Unreadable("a block is larger than it can be")
        piece = bytes(due)  # of size 0 is a hole
        if size:
            piece = os.pread(image.file, size, at)
            if not stored & STORED:
                piece = image.codec.expand(piece, whole)
        if len(piece) != due:
            raise Unreadable("a block is shorter than it should be")
        yield piece
        at += size
        left -= due

    if left and file.fragment != NONE:
        tail = image.fragment_of(file.fragment)[file.offset : file.offset + left]
        if len(tail) != left:
            raise Unreadable("a file is shorter than it should be")
        yield tail
