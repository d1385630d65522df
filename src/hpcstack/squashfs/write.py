"""The metadata of a spliced image, made in memory: the base's own blocks first, what is new behind
them.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from hpcstack.squashfs.codec import METADATA, Codec, Unreadable
from hpcstack.squashfs.data import Data
from hpcstack.squashfs.inode import (
    BLOCK,
    CHAR,
    DIR,
    FILE,
    LINK,
    NONE,
    SOCKET,
    DirectoryEntry,
    Inode,
)
from hpcstack.squashfs.read import PREFIXES
from hpcstack.squashfs.table import PLAIN, Rows, Table
from hpcstack.squashfs.tree import Folder, Leaf, Merged, Xattrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SMALL, MAX_IDS = 1 << 32, 0xFFFF
ENTRIES = 256  # names under one header


class Metadata:
    """A table that is written: what of a base comes before it stays as it is, but for its last
    block.
    """

    def __init__(self, pack: Codec, base: Table | None = None) -> None:
        self.codec, self.out = pack, bytearray()
        at, data = base.last() if base else (0, b"")
        if base and len(data) == METADATA:
            at, data = base.size, b""
        self.kept = memoryview(base.whole())[:at] if base else memoryview(b"")
        self.open = bytearray(data)

    def place(self) -> tuple[int, int]:
        """(block, offset) of what is written next."""
        return len(self.kept) + len(self.out), len(self.open)

    def reference(self) -> int:
        block, offset = self.place()
        if block >= SMALL:
            raise Unreadable("a table would be larger than 4 GiB")
        return block << 16 | offset

    def write(self, data: bytes) -> None:
        self.open += data
        while len(self.open) >= METADATA:
            self._close(METADATA)

    def _close(self, size: int) -> None:
        data = bytes(self.open[:size])
        del self.open[:size]
        self.out += packed_block(data, self.codec)

    def end(self) -> bytes:
        """All that follows `kept`."""
        if self.open:
            self._close(len(self.open))
        return bytes(self.out)


def packed_block(data: bytes, pack: Codec) -> bytes:
    small = pack.pack(data)
    if len(small) < len(data):
        return struct.pack("<H", len(small)) + small
    return struct.pack("<H", len(data) | PLAIN) + data


class Writer:
    """The metadata of MERGED, made in memory, and where the layers' data go (`data`)."""

    def __init__(self, merged: Merged) -> None:
        self.base, self.merged = merged.base, merged
        about = self.base.super
        self.inodes, self.folders = (
            Metadata(self.base.codec, self.base.inodes),
            Metadata(self.base.codec, self.base.folders),
        )
        self.ids: list[int] = list(self.base.ids)
        self.known_ids: dict[int, int] = {
            one: number for number, one in reversed(list(enumerate(self.ids)))
        }
        self.keys = Metadata(self.base.codec, self.base.attributes.keys)
        self.sets = Rows("<QII", bytes(self.base.attributes.sets.data))
        self.known_sets: dict[Xattrs, int] = {}
        exported = self.base.exported()
        if exported is not None:
            exported.extend([0] * (merged.count - about.inodes))
        self.exported = exported
        self.data = Data(merged, len(self.base.fragments()))
        self.fragments = self.base.fragments()
        for start, size in self.data.fragments:
            self.fragments.append((start, size, 0))
        self.written: dict[int, DirectoryEntry] = {}  # of leaves, by number
        self.root = self._folder(merged.root, merged.count + 1).reference

    # -- inodes

    def _add(self, number: int, kind: int, data: bytes) -> DirectoryEntry:
        reference = self.inodes.reference()
        self.inodes.write(data)
        if self.exported is not None:
            self.exported[number - 1] = reference
        return DirectoryEntry(reference, number, kind)

    def _common(self, kind: int, inode: Inode, number: int) -> bytes:
        return struct.pack(
            "<4H2I", kind, inode.mode, self._id(inode.uid), self._id(inode.gid), inode.time, number
        )

    def _id(self, one: int) -> int:
        if one not in self.known_ids:
            self.known_ids[one] = len(self.ids)
            self.ids.append(one)
            if len(self.ids) > MAX_IDS:
                raise Unreadable(f"more than {MAX_IDS} owners and groups")
        return self.known_ids[one]

    def _leaf(self, leaf: Leaf) -> DirectoryEntry:
        if leaf.number not in self.written:
            inode, xattr = leaf.inode, self._xattr(leaf.xattrs)
            kind = inode.kind
            make = {FILE: self._file, LINK: self._link}.get(kind, self._other)
            self.written[leaf.number] = self._add(leaf.number, kind, make(leaf, xattr))
        return self.written[leaf.number]

    def _file(self, leaf: Leaf, xattr: int) -> bytes:
        inode = leaf.inode
        start = self.data.blocks.get((leaf.layer, inode.start), 0) if inode.stored else 0
        fragment, offset = self.data.tails.get(leaf.number, (NONE, 0))
        blocks = struct.pack(f"<{len(inode.blocks)}I", *inode.blocks)
        if (
            max(start, inode.size) < SMALL
            and leaf.links == 1
            and xattr == NONE
            and not inode.sparse
        ):
            about = struct.pack("<4I", start, fragment, offset, inode.size)
            return self._common(FILE, inode, leaf.number) + about + blocks
        about = struct.pack(
            "<3Q4I", start, inode.size, inode.sparse, leaf.links, fragment, offset, xattr
        )
        return self._common(FILE + SOCKET, inode, leaf.number) + about + blocks

    def _link(self, leaf: Leaf, xattr: int) -> bytes:
        target = leaf.inode.target
        about = struct.pack("<2I", leaf.links, len(target)) + target
        return self._extended(LINK, leaf, about, xattr)

    def _other(self, leaf: Leaf, xattr: int) -> bytes:
        about = struct.pack("<I", leaf.links)
        if leaf.inode.kind in (BLOCK, CHAR):
            about += struct.pack("<I", leaf.inode.device)
        return self._extended(leaf.inode.kind, leaf, about, xattr)

    def _extended(self, kind: int, leaf: Leaf, about: bytes, xattr: int) -> bytes:
        if xattr == NONE:
            return self._common(kind, leaf.inode, leaf.number) + about
        return (
            self._common(kind + SOCKET, leaf.inode, leaf.number) + about + struct.pack("<I", xattr)
        )

    # -- folders

    def _folder(self, folder: Folder, parent: int) -> DirectoryEntry:
        """FOLDER and all below it that is new; the folder's own inode last."""
        found: list[tuple[bytes, DirectoryEntry]] = []
        for name, child in sorted(folder.children.items()):
            if isinstance(child, Folder):
                found.append((name, self._folder(child, folder.number)))
            else:
                found.append((name, self._leaf(child) if isinstance(child, Leaf) else child))
        block, offset = self.folders.place()
        size, index = self._listing(found)
        links = 2 + sum(entry.kind == DIR for _, entry in found)
        xattr = self._xattr(folder.xattrs)
        if size <= 0xFFFF and xattr == NONE and not index:
            about = struct.pack("<2I2HI", block, links, size, offset, parent)
            return self._add(
                folder.number, DIR, self._common(DIR, folder.inode, folder.number) + about
            )
        about = struct.pack("<4I2HI", links, size, block, parent, len(index), offset, xattr)
        about += b"".join(
            struct.pack("<3I", at, where, len(name) - 1) + name for at, where, name in index
        )
        return self._add(
            folder.number, DIR, self._common(DIR + SOCKET, folder.inode, folder.number) + about
        )

    def _listing(
        self, found: list[tuple[bytes, DirectoryEntry]]
    ) -> tuple[int, list[tuple[int, int, bytes]]]:
        """FOUND in the table of folders: (its size, as its inode says it; an index of the first
        header in each later block).
        """
        size, index = 0, list[tuple[int, int, bytes]]()
        last = self.folders.place()[0]
        for group in _headers(found):
            here = self.folders.place()[0]
            if here != last and size and len(index) < 0xFFFF:
                index.append((size, here, group[0][0]))
                last = here
            data = _group(group)
            self.folders.write(data)
            size += len(data)
        return size + 3, index

    # -- attributes

    def _xattr(self, xattrs: Xattrs) -> int:
        if not xattrs:
            return NONE
        if xattrs not in self.known_sets:
            where, data = (
                self.keys.reference(),
                b"".join(_attribute(name, value) for name, value in xattrs),
            )
            self.keys.write(data)
            self.known_sets[xattrs] = len(self.sets)
            self.sets.append((where, len(xattrs), len(data)))
        return self.known_sets[xattrs]


def _headers(
    found: Iterable[tuple[bytes, DirectoryEntry]],
) -> Iterator[list[tuple[bytes, DirectoryEntry]]]:
    """FOUND in runs that can stand under one header: inodes of one block, with numbers that are not
    far apart.
    """
    group: list[tuple[bytes, DirectoryEntry]] = []
    for name, entry in found:
        if group:
            first = group[0][1]
            near = -(1 << 15) <= entry.number - first.number < 1 << 15
            if len(group) == ENTRIES or entry.reference >> 16 != first.reference >> 16 or not near:
                yield group
                group = []
        group.append((name, entry))
    if group:
        yield group


def _group(group: list[tuple[bytes, DirectoryEntry]]) -> bytes:
    first = group[0][1]
    out = [struct.pack("<3I", len(group) - 1, first.reference >> 16, first.number)]
    for name, entry in group:
        out.append(
            struct.pack(
                "<HhHH",
                entry.reference & 0xFFFF,
                entry.number - first.number,
                entry.kind,
                len(name) - 1,
            )
        )
        out.append(name)
    return b"".join(out)


def _attribute(name: bytes, value: bytes) -> bytes:
    kind, prefix = next(
        (kind, prefix) for kind, prefix in PREFIXES.items() if name.startswith(prefix)
    )
    short = name[len(prefix) :]
    return struct.pack("<HH", kind, len(short)) + short + struct.pack("<I", len(value)) + value
