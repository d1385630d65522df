"""The layer that makes an image of its base: what differs between two squashfs files, as a tar.

A file that differs is in the layer whole, with the folders above it. What the base has and the
image does not is a whiteout. Times of folders, and owners, do not count: a base that is built on
belongs to root as a whole, and the layers that it came from do not.

The same two files give the same bytes.
https://github.com/opencontainers/image-spec/blob/main/layer.md
"""

from __future__ import annotations

import os
import posixpath
import re
import tarfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpcstack.oci.flatten import WHITEOUT
from hpcstack.oci.headers import END, XATTR, make_header
from hpcstack.squashfs.inode import DIR, FIFO, FILE, LINK
from hpcstack.squashfs.lookup import stream_content
from hpcstack.squashfs.splice import is_spliced_on
from hpcstack.squashfs.tree import list_kept_xattrs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcstack.squashfs.inode import DirectoryEntry, Inode
    from hpcstack.squashfs.read import Squashfs

BLOCK_SIZE = tarfile.BLOCKSIZE
TYPES = {
    DIR: tarfile.DIRTYPE,
    FILE: tarfile.REGTYPE,
    LINK: tarfile.SYMTYPE,
    FIFO: tarfile.FIFOTYPE,
}
# NVIDIA's link to a libcuda of the image's own, which import leaves out (oci/importer.py): its
# folder, and what lies beside it.
LOCAL, CUDA, COMPAT = b"usr/local", re.compile(rb"cuda(-[0-9.]+)?"), b"compat"
COMPAT_LINK, COMPAT_LIBRARIES = b"lib", b"lib.real"


@dataclass
class Delta:
    """What differs between a base and an image.

    CHANGED has {path: inode} of what the layer brings, without folders that only hold it; GONE the
    paths that it removes. LINKED are the names of each file that has several, by its inode's
    number. SKIPPED are paths that the layer cannot bring: devices and sockets, and files whose names
    would be taken for whiteouts.
    """

    changed: dict[bytes, Inode] = field(default_factory=dict)
    gone: list[bytes] = field(default_factory=list)
    linked: dict[int, list[bytes]] = field(default_factory=dict)
    skipped: list[bytes] = field(default_factory=list)


class _Comparison:
    """Compares IMAGE with BASE. Paths in ALWAYS differ, whatever the base has there."""

    def __init__(self, base: Squashfs, image: Squashfs, always: frozenset[bytes]) -> None:
        self.base, self.image = base, image
        self.always = always
        # In a spliced image, all of its base keeps its place: equal references are equal inodes.
        self.shares_tables = is_spliced_on(image, base)
        self.above_always = {
            above for path in always for above in _list_parents(path)
        }  # folders that must be looked into
        self.found = Delta()
        # Names of equal content whose files have several: (inode in the base, in the image, name)
        self.equal_links: list[tuple[int, int, bytes]] = []

    def compare(self) -> Delta:
        """Return what differs."""
        self._compare_folders(self.base.root(), self.image.root(), b"")
        self._add_linked_otherwise()
        self._add_other_names()
        self.found.gone += _find_left_out(self.image)
        return self.found

    def _compare_folders(self, before: Inode | None, after: Inode, path: bytes) -> None:
        """Compare what is in two folders at PATH; BEFORE is None where the base has none there."""
        had = self.base.listing(before) if before else {}
        has = self.image.listing(after)
        for name, entry in sorted(has.items()):
            here = posixpath.join(path, name)
            old = had.get(name)
            if old and self._is_same_entry(old, entry, here):
                continue
            inode = self.image.inode(entry.reference)
            old_inode = self.base.inode(old.reference) if old else None
            if inode.kind == DIR:
                below = old_inode if old_inode and old_inode.kind == DIR else None
                is_new = below is None or not self._has_same_rights(below, inode)
                if is_new or here in self.always:
                    self.found.changed[here] = inode
                self._compare_folders(below, inode, here)
            elif inode.kind not in TYPES or name.startswith(WHITEOUT.encode()):
                self.found.skipped.append(here)
                if old:
                    self.found.gone.append(here)
            else:
                self._compare_leaves(old_inode, inode, here)

        self.found.gone += [posixpath.join(path, name) for name in sorted(had) if name not in has]

    def _is_same_entry(self, old: DirectoryEntry, new: DirectoryEntry, path: bytes) -> bool:
        """Return whether NEW, at PATH, is the base's own inode, with all that lies below it."""
        if not self.shares_tables or old.reference != new.reference:
            return False
        return path not in self.always and path not in self.above_always

    def _compare_leaves(self, before: Inode | None, after: Inode, path: bytes) -> None:
        if after.kind == FILE and after.links > 1:
            self.found.linked.setdefault(after.number, []).append(path)
        is_same = (
            before is not None
            and path not in self.always
            and before.kind == after.kind
            and self._has_same_rights(before, after)
            and self._has_same_content(before, after)
        )
        if not is_same:
            self.found.changed[path] = after
        elif before and after.kind == FILE and max(before.links, after.links) > 1:
            self.equal_links.append((before.number, after.number, path))

    def _has_same_rights(self, before: Inode, after: Inode) -> bool:
        if before.kind != LINK and before.mode != after.mode:
            return False
        had = list_kept_xattrs(self.base.xattrs(before))
        return had == list_kept_xattrs(self.image.xattrs(after))

    def _has_same_content(self, before: Inode, after: Inode) -> bool:
        """Return whether two inodes of one kind, but folders, hold the same."""
        if after.kind != FILE:
            return before.target == after.target
        if (before.size, before.time) != (after.size, after.time):
            return False
        where = ("start", "fragment", "offset")
        places = [[getattr(one, name) for name in where] for one in (before, after)]
        if self.shares_tables and places[0] == places[1] and before.blocks == after.blocks:
            return True
        return _are_equal(stream_content(self.base, before), stream_content(self.image, after))

    def _add_linked_otherwise(self) -> None:
        """Add names that are of one file in the base and of several in the image, or the other way.

        What a layer has touched is a file of its own, though its content be equal: an overlay
        copies one name of a file, and leaves the others as they were.
        """
        after_of: dict[int, set[int]] = {}
        before_of: dict[int, set[int]] = {}
        for before, after, _ in self.equal_links:
            after_of.setdefault(before, set()).add(after)
            before_of.setdefault(after, set()).add(before)

        for before, after, path in self.equal_links:
            is_split = len(after_of[before]) > 1 or len(before_of[after]) > 1
            if is_split or self.shares_tables:
                found = self.image.find(path)
                assert found is not None
                self.found.changed[path] = found

    def _add_other_names(self) -> None:
        """Add each other name of a file that differs under one of them.

        A hard link in a layer can only be to a file of the same layer.
        """
        for names in self.found.linked.values():
            changed = [name for name in names if name in self.found.changed]
            for name in names if changed else ():
                self.found.changed[name] = self.found.changed[changed[0]]


def _find_left_out(image: Squashfs) -> Iterator[bytes]:
    """Yield NVIDIA's links to a libcuda, which import has left out of the base.

    The layers that the base was made of may have them. A whiteout of what is not there does no
    harm.
    """
    local = image.find(LOCAL)
    if local is None or local.kind != DIR:
        return
    for name in image.listing(local):
        folder = posixpath.join(LOCAL, name, COMPAT)
        found = image.find(folder)
        if CUDA.fullmatch(name) and found and found.kind == DIR:
            has = image.listing(found)
            if COMPAT_LIBRARIES in has and COMPAT_LINK not in has:
                yield posixpath.join(folder, COMPAT_LINK)


def _are_equal(one: Iterator[bytes], other: Iterator[bytes]) -> bool:
    """Return whether two streams of bytes are equal; their pieces may be of different sizes."""
    left = right = b""
    while True:
        left = left or next(one, b"")
        right = right or next(other, b"")
        if not left or not right:
            return left == right
        count = min(len(left), len(right))
        if left[:count] != right[:count]:
            return False
        left, right = left[count:], right[count:]


def _list_parents(path: bytes) -> Iterator[bytes]:
    """Yield the folders above PATH, the highest first, without the root."""
    parts = path.split(b"/")
    for count in range(1, len(parts)):
        yield b"/".join(parts[:count])


def find_delta(base: Squashfs, image: Squashfs, always: frozenset[str] = frozenset()) -> Delta:
    """Return what differs between BASE and IMAGE.

    ALWAYS are paths that are taken to differ, because the layers of which BASE was made do not have
    them. Raise Unreadable for an image that is damaged.
    """
    return _Comparison(base, image, frozenset(map(os.fsencode, always))).compare()


def write_delta(delta: Delta, image: Squashfs) -> Iterator[bytes]:
    """Yield the tar of DELTA, with the files' content out of IMAGE.

    Raise Unreadable where IMAGE is damaged.
    """
    written: set[bytes] = set()
    first_names: dict[int, bytes] = {}
    whiteouts = {_name_whiteout(path): path for path in delta.gone}
    for path in sorted({*delta.changed, *whiteouts}):
        for folder in _list_parents(path):
            if folder not in written and folder not in delta.changed:
                found = image.find(folder)
                assert found is not None
                yield _make_member(image, found, folder)
            written.add(folder)
        written.add(path)

        inode = delta.changed.get(path)
        if inode is None:
            yield make_header(tarfile.TarInfo(), os.fsdecode(path))
        elif inode.number in delta.linked and inode.number in first_names:
            link = os.fsdecode(first_names[inode.number])
            yield make_header(_make_info(image, inode, path), os.fsdecode(path), link)
        else:
            first_names[inode.number] = path
            yield _make_member(image, inode, path)
            if inode.kind == FILE:
                yield from _read_padded(image, inode)
    yield END


def _name_whiteout(path: bytes) -> bytes:
    folder, name = posixpath.split(path)
    return posixpath.join(folder, WHITEOUT.encode() + name)


def _make_member(image: Squashfs, inode: Inode, path: bytes) -> bytes:
    """Return the header of INODE under the name PATH."""
    return make_header(_make_info(image, inode, path), os.fsdecode(path))


def _make_info(image: Squashfs, inode: Inode, path: bytes) -> tarfile.TarInfo:
    out = tarfile.TarInfo(os.fsdecode(path))
    out.type = TYPES[inode.kind]
    out.mode, out.uid, out.gid, out.mtime = inode.mode, inode.uid, inode.gid, inode.time
    out.linkname = os.fsdecode(inode.target)
    if inode.kind == FILE:
        out.size = inode.size
    out.pax_headers = {
        XATTR + os.fsdecode(name): value.decode("utf-8", "surrogateescape")
        for name, value in list_kept_xattrs(image.xattrs(inode))
    }
    return out


def _read_padded(image: Squashfs, file: Inode) -> Iterator[bytes]:
    """Yield the content of FILE, filled up to a whole block of a tar."""
    yield from stream_content(image, file)
    if file.size % BLOCK_SIZE:
        yield bytes(BLOCK_SIZE - file.size % BLOCK_SIZE)
