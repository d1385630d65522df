"""What an image becomes when layers are laid over it: only the folders that change are looked at.

A layer is a SquashFS of an overlay's upper folder, with the kernel's marks: a character device 0/0
takes a name away, `overlay.opaque` hides what lay below
(https://docs.kernel.org/filesystems/overlayfs.html).
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
MAX_DEPTH = 400  # folders in folders
OVERLAY = (b"user.overlay.", b"trusted.overlay.")
OPAQUE = (b"user.overlay.opaque", b"trusted.overlay.opaque")
WHITEOUT = (b"user.overlay.whiteout", b"trusted.overlay.whiteout")
CAPABILITY = b"security.capability"
REVISION_2, REVISION_3 = (
    0x02000000,
    0x03000000,
)  # of vfs_cap_data: https://man7.org/linux/man-pages/man7/capabilities.7.html
REVISION_MASK = 0xFF000000


@dataclass(eq=False)
class Leaf:
    """A file, link, device, ... that a layer brings; one for all its names."""

    layer: int
    inode: Inode
    xattrs: Xattrs
    number: int = 0
    links: int = 0


@dataclass(eq=False)
class Folder:
    """A folder that is written anew.

    A `DirectoryEntry` among its children is the base's, which stays.
    """

    inode: Inode
    xattrs: Xattrs
    number: int = 0  # the base's, where it was there
    children: dict[bytes, Folder | Leaf | DirectoryEntry] = field(default_factory=dict)


class Removed(NamedTuple):
    """An inode of the base that has lost names: where its data lie, their bytes, its links, the
    names that went.
    """

    start: int
    stored: int
    links: int
    gone: int


def kept_xattrs(xattrs: Xattrs) -> Xattrs:
    """Those of XATTRS that belong to an image: the user's own, and capabilities.

    A capability that was set in a user namespace names the user who built: without that it means
    the same.
    """
    out = []
    for name, value in xattrs:
        if name == CAPABILITY:
            out.append((name, _plain_capability(value)))
        elif name.startswith(b"user.") and not name.startswith(OVERLAY):
            out.append((name, value))
    return tuple(sorted(out))


def _plain_capability(value: bytes) -> bytes:
    if len(value) != 24:
        return value
    magic = struct.unpack_from("<I", value)[0]
    if magic & REVISION_MASK != REVISION_3:
        return value
    return struct.pack("<I", magic & ~REVISION_MASK | REVISION_2) + value[4:20]


class Merged:
    """BASE with LAYERS over it, the oldest first: `root`, and what of the base is named no more."""

    def __init__(self, base: Squashfs, layers: list[Squashfs]) -> None:
        self.base, self.layers = base, layers
        about = base.root()
        self.root = Folder(about, base.xattrs(about), about.number, dict(base.listing(about)))
        self.removed: dict[int, Removed] = {}  # {inode's number: ...}
        self.leaves: dict[tuple[int, int], Leaf] = {}
        for number, layer in enumerate(layers):
            self._lay(self.root, layer.root(), number, 0)
        self.files: list[Leaf] = []
        self.count = base.super.inodes
        self._number(self.root)

    def _lay(self, folder: Folder, upper: Inode, number: int, depth: int) -> None:
        """UPPER, a folder of the layer NUMBER, over FOLDER."""
        if depth > MAX_DEPTH:
            raise Unreadable(f"folders lie more than {MAX_DEPTH} deep in one another")
        layer = self.layers[number]
        xattrs = layer.xattrs(upper)
        folder.inode, folder.xattrs = upper, kept_xattrs(xattrs)
        marked = any(name in OPAQUE and value == b"x" for name, value in xattrs)
        for name, entry in layer.listing(upper).items():
            found = layer.inode(entry.reference)
            old = folder.children.get(name)
            if found.kind == DIR:
                below = self._folder(old, found, number)
                folder.children[name] = below
                self._lay(below, found, number, depth + 1)
                continue
            if isinstance(old, DirectoryEntry):
                self._remove(old)
            elif isinstance(old, Folder):
                self._remove_below(old)
            if _takes_away(found, layer, marked=marked):
                folder.children.pop(name, None)
            else:
                folder.children[name] = self._leaf(found, number)

    def _folder(
        self, old: Folder | Leaf | DirectoryEntry | None, upper: Inode, number: int
    ) -> Folder:
        """What UPPER lies over: OLD, where that is a folder which it does not hide."""
        hides = any(
            name in OPAQUE and value == b"y" for name, value in self.layers[number].xattrs(upper)
        )
        if isinstance(old, DirectoryEntry) and old.kind == DIR and not hides:
            about = self.base.inode(old.reference)
            return Folder(about, (), about.number, dict(self.base.listing(about)))
        if isinstance(old, Folder) and not hides:
            return old
        if isinstance(old, DirectoryEntry):
            self._remove(old)
        elif isinstance(old, Folder):
            self._remove_below(old)
        return Folder(upper, ())

    def _leaf(self, inode: Inode, number: int) -> Leaf:
        key = number, inode.number
        if key not in self.leaves:
            self.leaves[key] = Leaf(number, inode, kept_xattrs(self.layers[number].xattrs(inode)))
        return self.leaves[key]

    def _remove_below(self, folder: Folder) -> None:
        for one in _entries_below(folder):
            self._remove(one)

    def _remove(self, entry: DirectoryEntry, depth: int = 0) -> None:
        """ENTRY of the base, and all below it, has one name less."""
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
        before = self.removed.get(inode.number) or Removed(
            inode.start, inode.stored, inode.links, 0
        )
        self.removed[inode.number] = before._replace(gone=before.gone + 1)

    def _number(self, folder: Folder) -> None:
        """New numbers and counts of links, in the order of names."""
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
        """At most so many bytes of the base's data belong to no file any more. Tails in fragments
        are not counted, and data that two files share, as one.
        """
        return sum(
            {
                one.start: one.stored for one in self.removed.values() if one.gone >= one.links
            }.values()
        )


def _entries_below(folder: Folder) -> Iterator[DirectoryEntry]:
    for child in folder.children.values():
        if isinstance(child, DirectoryEntry):
            yield child
        elif isinstance(child, Folder):
            yield from _entries_below(child)


def _takes_away(found: Inode, layer: Squashfs, *, marked: bool) -> bool:
    """Whether FOUND is the mark of a deletion; MARKED folders have them also as empty files with an
    attribute.
    """
    if found.kind == CHAR:
        return found.device == 0
    return (
        marked and found.kind == FILE and any(name in WHITEOUT for name, _ in layer.xattrs(found))
    )
