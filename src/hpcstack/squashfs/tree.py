"""Merge layers over an image into one tree. Only the folders that change are looked at.

A layer is a SquashFS of an overlay's upper folder, with the kernel's marks: a character device 0/0
(a whiteout) removes a name, and the attribute `overlay.opaque` on a folder hides what lies below
it. https://docs.kernel.org/filesystems/overlayfs.html

Tested in tests/unit/squashfs/test_splice.py.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from hpcstack.squashfs.codec import Unreadable
from hpcstack.squashfs.inode import CHAR, DIR, FILE, DirectoryEntry, Inode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcstack.squashfs.read import Squashfs

Xattrs = tuple[tuple[bytes, bytes], ...]
MAX_DEPTH = 400  # folders in one another
OVERLAY = (b"user.overlay.", b"trusted.overlay.")
OPAQUE = (b"user.overlay.opaque", b"trusted.overlay.opaque")
WHITEOUT = (b"user.overlay.whiteout", b"trusted.overlay.whiteout")
CAPABILITY = b"security.capability"
# Revisions of vfs_cap_data: https://man7.org/linux/man-pages/man7/capabilities.7.html.
REVISION_2, REVISION_3 = 0x02000000, 0x03000000
REVISION_MASK = 0xFF000000


@dataclass(eq=False)
class Leaf:
    """A file, link or device that a layer brings. Hard links are one leaf."""

    layer: int
    inode: Inode
    xattrs: Xattrs
    number: int = 0  # of its inode in the new image
    links: int = 0  # its names in the new image; 0 if a later layer removed or replaced it


@dataclass(eq=False)
class Folder:
    """A folder that is written anew.

    A `DirectoryEntry` among its children is one of the base's, which stays as it is.
    """

    inode: Inode
    xattrs: Xattrs
    number: int = 0  # the base's own if the base has the folder
    children: dict[bytes, Folder | Leaf | DirectoryEntry] = field(default_factory=dict)


def open_tree_folder(image: Squashfs, reference: int) -> Folder:
    """Return the folder of IMAGE whose inode is at REFERENCE, to be written anew."""
    inode = image.inode(reference)
    if inode.kind != DIR:
        raise Unreadable("what should be a folder is none")
    children: dict[bytes, Folder | Leaf | DirectoryEntry] = dict(image.listing(inode))
    return Folder(inode, image.xattrs(inode), inode.number, children)


class Removed(NamedTuple):
    """An inode of the base that has lost names."""

    start: int  # where its data lie
    stored: int  # bytes of them
    links: int  # the names that it had
    gone: int  # the names that it has lost


def list_kept_xattrs(xattrs: Xattrs) -> Xattrs:
    """Return those of XATTRS that belong in an image, sorted: `user.*`, and capabilities.

    A capability that was set in a user namespace contains the id of the user who built the image.
    It is written without that, and then means the same.
    """
    out = []
    for name, value in xattrs:
        if name == CAPABILITY:
            out.append((name, _plain_capability(value)))
        elif name.startswith(b"user.") and not name.startswith(OVERLAY):
            out.append((name, value))
    return tuple(sorted(out))


def _plain_capability(value: bytes) -> bytes:
    """Return the capability VALUE without the root of a user namespace: as revision 2, not 3."""
    if len(value) != 24:
        return value
    magic = struct.unpack_from("<I", value)[0]
    if magic & REVISION_MASK != REVISION_3:
        return value
    return struct.pack("<I", magic & ~REVISION_MASK | REVISION_2) + value[4:20]


class Merged:
    """BASE with LAYERS over it, oldest first."""

    def __init__(self, base: Squashfs, layers: list[Squashfs]) -> None:
        self.base, self.layers = base, layers
        self.root = open_tree_folder(base, base.super.root)
        self.removed: dict[int, Removed] = {}  # {number of an inode of the base: what it lost}
        self.leaves: dict[tuple[int, int], Leaf] = {}  # {(layer, its inode's number): leaf}
        for number, layer in enumerate(layers):
            self._merge(self.root, layer.root(), number, 0)

        self.files: list[Leaf] = []  # the regular files among the leaves that are in the image
        self.count = base.super.inodes  # the highest number of an inode
        self._number(self.root)

    def _merge(self, folder: Folder, upper: Inode, number: int, depth: int) -> None:
        """Lay UPPER, a folder of the layer NUMBER, over FOLDER, and so all folders below."""
        if depth > MAX_DEPTH:
            raise Unreadable(f"folders lie more than {MAX_DEPTH} deep in one another")
        layer = self.layers[number]
        xattrs = layer.xattrs(upper)
        folder.inode, folder.xattrs = upper, list_kept_xattrs(xattrs)
        # `x` means that the folder has whiteouts which are files with an attribute.
        marked = any(name in OPAQUE and value == b"x" for name, value in xattrs)
        for name, entry in layer.listing(upper).items():
            found = layer.inode(entry.reference)
            old = folder.children.get(name)
            if found.kind == DIR:
                below = self._make_folder(old, found, number)
                folder.children[name] = below
                self._merge(below, found, number, depth + 1)
                continue

            if isinstance(old, DirectoryEntry):
                self._remove(old)
            elif isinstance(old, Folder):
                self._remove_below(old)
            if _is_whiteout(found, layer, marked=marked):
                folder.children.pop(name, None)
            else:
                folder.children[name] = self._leaf(found, number)

    def _make_folder(
        self, old: Folder | Leaf | DirectoryEntry | None, upper: Inode, number: int
    ) -> Folder:
        """Return the folder that UPPER, of the layer NUMBER, is to be merged into.

        It has the content of OLD if that is a folder, and UPPER does not hide it; otherwise it is
        empty, and OLD is removed.
        """
        upper_xattrs = self.layers[number].xattrs(upper)
        hides = any(name in OPAQUE and value == b"y" for name, value in upper_xattrs)
        if isinstance(old, DirectoryEntry) and old.kind == DIR and not hides:
            return open_tree_folder(self.base, old.reference)
        if isinstance(old, Folder) and not hides:
            return old
        if isinstance(old, DirectoryEntry):
            self._remove(old)
        elif isinstance(old, Folder):
            self._remove_below(old)
        return Folder(upper, ())

    def _leaf(self, inode: Inode, number: int) -> Leaf:
        """Return the leaf for INODE of the layer NUMBER: the same one for all its names."""
        key = number, inode.number
        if key not in self.leaves:
            self.leaves[key] = Leaf(
                number, inode, list_kept_xattrs(self.layers[number].xattrs(inode))
            )
        return self.leaves[key]

    def _remove_below(self, folder: Folder) -> None:
        """Note that all of the base that lies in FOLDER is removed."""
        for entry in _entries_below(folder):
            self._remove(entry)

    def _remove(self, entry: DirectoryEntry, depth: int = 0) -> None:
        """Note that ENTRY of the base has lost a name; for a folder, also all that lies in it."""
        inode = self.base.inode(entry.reference)
        if inode.kind == DIR:
            if inode.number in self.removed:
                raise Unreadable("a folder has two names")
            if depth > MAX_DEPTH:
                raise Unreadable(f"folders lie more than {MAX_DEPTH} deep in one another")
            self.removed[inode.number] = Removed(inode.start, 0, 2, 1)
            for below in self.base.listing(inode).values():
                self._remove(below, depth + 1)
            return

        before = self.removed.get(inode.number)
        if before is None:
            before = Removed(inode.start, inode.stored, inode.links, 0)
        self.removed[inode.number] = before._replace(gone=before.gone + 1)

    def _number(self, folder: Folder) -> None:
        """Number new inodes, and count their links, in the order of names."""
        if not folder.number:
            self.count += 1
            folder.number = self.count
        for _, child in sorted(folder.children.items()):
            if isinstance(child, Folder):
                self._number(child)
            elif isinstance(child, Leaf):
                if not child.links:
                    self.count += 1
                    child.number = self.count
                    if child.inode.kind == FILE:
                        self.files.append(child)
                child.links += 1

    def dead_bytes(self) -> int:
        """Return how many bytes of the base's data, at most, belong to no file any more.

        Data that several files share count once, even if one of these files remains. Tails in
        fragments do not count.
        """
        dead = {one.start: one.stored for one in self.removed.values() if one.gone >= one.links}
        return sum(dead.values())


def _entries_below(folder: Folder) -> Iterator[DirectoryEntry]:
    """Yield the base's entries in FOLDER, and in the new folders below it."""
    for child in folder.children.values():
        if isinstance(child, DirectoryEntry):
            yield child
        elif isinstance(child, Folder):
            yield from _entries_below(child)


def _is_whiteout(found: Inode, layer: Squashfs, *, marked: bool) -> bool:
    """Return whether FOUND marks a deletion.

    In a MARKED folder, a file with the attribute `overlay.whiteout` does so as well.
    """
    if found.kind == CHAR:
        return found.device == 0
    if not marked or found.kind != FILE:
        return False
    return any(name in WHITEOUT for name, _ in layer.xattrs(found))
