"""One file of a SquashFS: found by its path, as a process whose root is the image would, and read."""

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

LINKS = 40  # that Linux follows in one path


class MoreThanAsked(Unreadable):
    """A file has more bytes than were asked for."""


def find_inode(image: Squashfs, path: str, *, follow: bool = True) -> Inode | None:
    """The inode of PATH in IMAGE, links on its way followed, and a link at its end if FOLLOW.

    None where there is nothing. Unreadable where the image is damaged.
    """
    way = [image.root()]
    parts = deque(_parts(os.fsencode(path)))
    links = 0
    while parts:
        name = parts.popleft()
        if name == b"..":
            del way[max(1, len(way) - 1) :]
            continue
        entry = image.entry(way[-1], name) if way[-1].kind == DIR else None
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
    return [part for part in path.split(b"/") if part not in (b"", b".")]


def read_content(image: Squashfs, file: Inode, limit: int) -> bytes:
    """What FILE holds.

    MoreThanAsked beyond LIMIT bytes, Unreadable where it is no file or not whole.
    """
    if file.kind != FILE:
        raise Unreadable("it is no file")
    if file.size > limit:
        raise MoreThanAsked(f"it is larger than {limit >> 20} MiB")
    with explain_damage():
        out = b"".join(_pieces(image, file))
    if len(out) != file.size:
        raise Unreadable("a file is shorter than it should be")
    return out


def _pieces(image: Squashfs, file: Inode) -> Iterator[bytes]:
    at, left, whole = file.start, file.size, image.super.block_size
    for stored in file.blocks:
        size, due = stored & ~STORED, min(left, whole)
        if size > whole:
            raise Unreadable("a block is larger than it can be")
        piece = bytes(due)  # a hole
        if size:
            data = os.pread(image.file, size, at)
            piece = data if stored & STORED else image.codec.expand(data, whole)
        if len(piece) != due:
            raise Unreadable("a block is shorter than it should be")
        yield piece
        at, left = at + size, left - due
    if left and file.fragment != NONE:
        start, stored, _ = image.fragments()[file.fragment]
        yield image.fragment(start, stored)[file.offset : file.offset + left]
