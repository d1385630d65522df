"""Make the metadata of a spliced image, in memory: the base's own blocks, then what is new.

Tested in tests/unit/squashfs/test_splice.py.
"""

from __future__ import annotations

import struct
from dataclasses import replace
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
from hpcstack.squashfs.read import NO_XATTRS, NOWHERE, PREFIXES, Squashfs, Superblock
from hpcstack.squashfs.table import PLAIN, Rows, Table
from hpcstack.squashfs.tree import Folder, Leaf, Merged, Xattrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SMALL = 1 << 32  # a place of this or more does not fit into 32 bits
MAX_IDS = 0xFFFF  # users and groups together
PADDED = 4096  # a file is padded to a multiple of this, which loop devices want
ENTRIES = 256  # names under one header of a listing


class Metadata:
    """A table that is written behind that of a BASE.

    The base's blocks stay as they are (`kept`), except the last: if it is not full, new data go on
    in it, and it is compressed again.
    """

    def __init__(self, pack: Codec, base: Table | None = None) -> None:
        self.codec = pack
        self.out = bytearray()  # new blocks, compressed
        self.kept = memoryview(b"")
        self.open = bytearray()  # the block that is being filled
        if base is None:
            return
        at, data = base.last()
        if len(data) == METADATA:  # the last block is full
            at, data = base.size, b""
        self.kept = memoryview(base.whole())[:at]
        self.open += data

    def place(self) -> tuple[int, int]:
        """Return (block, offset) of what is written next."""
        return len(self.kept) + len(self.out), len(self.open)

    def reference(self) -> int:
        """Return the place of what is written next, as inodes and folders refer to it."""
        block, offset = self.place()
        if block >= SMALL:
            raise Unreadable("a table would be larger than 4 GiB")
        return block << 16 | offset

    def write(self, data: bytes) -> None:
        """Add DATA, and compress the blocks that are full."""
        self.open += data
        while len(self.open) >= METADATA:
            self._close(METADATA)

    def _close(self, size: int) -> None:
        """Compress the first SIZE bytes of the open block."""
        data = bytes(self.open[:size])
        del self.open[:size]
        self.out += pack_block(data, self.codec)

    def end(self) -> bytes:
        """Return all that follows `kept`. Nothing may be written after this."""
        if self.open:
            self._close(len(self.open))
        return bytes(self.out)


def pack_block(data: bytes, pack: Codec) -> bytes:
    """Return DATA as a metadata block with its head, compressed if that makes it smaller."""
    small = pack.pack(data)
    if len(small) < len(data):
        return struct.pack("<H", len(small)) + small
    return struct.pack("<H", len(data) | PLAIN) + data


class Writer:
    """The metadata of MERGED, made in memory, and where the layers' data go (`data`)."""

    def __init__(self, merged: Merged) -> None:
        self.base, self.merged = merged.base, merged
        self.inodes = Metadata(self.base.codec, self.base.inodes)
        self.folders = Metadata(self.base.codec, self.base.folders)

        self.ids: list[int] = list(self.base.ids)
        # {id: its number in the table}. From the end, so that the first of several numbers counts.
        self.known_ids: dict[int, int] = {
            one: number for number, one in reversed(list(enumerate(self.ids)))
        }

        self.keys = Metadata(self.base.codec, self.base.attributes.keys)
        self.sets = Rows("<QII", bytes(self.base.attributes.sets.data))
        self.known_sets: dict[Xattrs, int] = {}

        self.exported = self.base.exported()
        if self.exported is not None:
            self.exported.extend([0] * (merged.count - self.base.super.inodes))

        self.data = Data(merged, len(self.base.fragments()))
        self.fragments = self.base.fragments()
        for start, size in self.data.fragments:
            self.fragments.append((start, size, 0))

        self.written: dict[int, DirectoryEntry] = {}  # leaves, by number
        # The parent of the root is, by the format, one more than the highest number of an inode.
        self.root = self._folder(merged.root, merged.count + 1).reference

    # -- inodes

    def _add(self, number: int, kind: int, data: bytes) -> DirectoryEntry:
        """Write the inode DATA. Return the entry by which a folder refers to it."""
        reference = self.inodes.reference()
        self.inodes.write(data)
        if self.exported is not None:
            self.exported[number - 1] = reference
        return DirectoryEntry(reference, number, kind)

    def _common(self, kind: int, inode: Inode, number: int) -> bytes:
        """Return the fields that all kinds of inodes begin with."""
        return struct.pack(
            "<4H2I", kind, inode.mode, self._id(inode.uid), self._id(inode.gid), inode.time, number
        )

    def _id(self, one: int) -> int:
        """Return the number of the user or group ONE in the table, and add it if it is new."""
        if one not in self.known_ids:
            self.known_ids[one] = len(self.ids)
            self.ids.append(one)
            if len(self.ids) > MAX_IDS:
                raise Unreadable(f"more than {MAX_IDS} owners and groups")
        return self.known_ids[one]

    def _leaf(self, leaf: Leaf) -> DirectoryEntry:
        """Write the inode of LEAF, once for all its names, and return its entry."""
        if leaf.number not in self.written:
            xattr = self._xattr(leaf.xattrs)
            kind = leaf.inode.kind
            make = {FILE: self._file, LINK: self._link}.get(kind, self._other)
            self.written[leaf.number] = self._add(leaf.number, kind, make(leaf, xattr))
        return self.written[leaf.number]

    def _file(self, leaf: Leaf, xattr: int) -> bytes:
        """Return the inode of a file: an extended one only if a basic one cannot hold it."""
        inode = leaf.inode
        start = 0
        if inode.stored:
            start = self.data.blocks.get((leaf.layer, inode.start), 0)
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
        """Return the inode of a symbolic link."""
        target = leaf.inode.target
        about = struct.pack("<2I", leaf.links, len(target)) + target
        return self._extended(LINK, leaf, about, xattr)

    def _other(self, leaf: Leaf, xattr: int) -> bytes:
        """Return the inode of a device, FIFO or socket."""
        about = struct.pack("<I", leaf.links)
        if leaf.inode.kind in (BLOCK, CHAR):
            about += struct.pack("<I", leaf.inode.device)
        return self._extended(leaf.inode.kind, leaf, about, xattr)

    def _extended(self, kind: int, leaf: Leaf, about: bytes, xattr: int) -> bytes:
        """Return an inode with the fields ABOUT: an extended one if it has attributes."""
        if xattr == NONE:
            return self._common(kind, leaf.inode, leaf.number) + about
        common = self._common(kind + SOCKET, leaf.inode, leaf.number)
        return common + about + struct.pack("<I", xattr)

    # -- folders

    def _folder(self, folder: Folder, parent: int) -> DirectoryEntry:
        """Write all that is new in FOLDER, then its listing, and last its own inode.

        PARENT is the number of the folder above. Return the entry of FOLDER.
        """
        found: list[tuple[bytes, DirectoryEntry]] = []
        for name, child in sorted(folder.children.items()):
            if isinstance(child, Folder):
                found.append((name, self._folder(child, folder.number)))
            elif isinstance(child, Leaf):
                found.append((name, self._leaf(child)))
            else:
                found.append((name, child))

        block, offset = self.folders.place()
        size, index = self._listing(found)
        links = 2 + sum(entry.kind == DIR for _, entry in found)
        xattr = self._xattr(folder.xattrs)
        if size <= 0xFFFF and xattr == NONE and not index:
            common = self._common(DIR, folder.inode, folder.number)
            about = struct.pack("<2I2HI", block, links, size, offset, parent)
            return self._add(folder.number, DIR, common + about)

        common = self._common(DIR + SOCKET, folder.inode, folder.number)
        about = struct.pack("<4I2HI", links, size, block, parent, len(index), offset, xattr)
        for at, where, name in index:
            about += struct.pack("<3I", at, where, len(name) - 1) + name
        return self._add(folder.number, DIR, common + about)

    def _listing(
        self, found: list[tuple[bytes, DirectoryEntry]]
    ) -> tuple[int, list[tuple[int, int, bytes]]]:
        """Write the listing FOUND. Return its size, as an inode states it, and its index.

        The index is for fast lookups in large folders. It has a row for the first header in each
        block but the first: (bytes before it in the listing, block, first name).
        """
        size = 0
        index: list[tuple[int, int, bytes]] = []
        last = self.folders.place()[0]
        for group in _headers(found):
            here = self.folders.place()[0]
            if here != last and size and len(index) < 0xFFFF:
                index.append((size, here, group[0][0]))
                last = here
            data = _pack_group(group)
            self.folders.write(data)
            size += len(data)
        return size + 3, index  # the format counts `.` and `..` as 3 bytes

    # -- attributes

    def _xattr(self, xattrs: Xattrs) -> int:
        """Return the number of the set XATTRS, and write it if it is new; NONE for an empty one."""
        if not xattrs:
            return NONE
        if xattrs not in self.known_sets:
            where = self.keys.reference()
            data = b"".join(_pack_attribute(name, value) for name, value in xattrs)
            self.keys.write(data)
            self.known_sets[xattrs] = len(self.sets)
            self.sets.append((where, len(xattrs), len(data)))
        return self.known_sets[xattrs]


def _headers(
    found: Iterable[tuple[bytes, DirectoryEntry]],
) -> Iterator[list[tuple[bytes, DirectoryEntry]]]:
    """Split FOUND into groups that can stand under one header of a listing.

    Their inodes are in one block, and their numbers differ from the first by 16 bits at most.
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


def _pack_group(group: list[tuple[bytes, DirectoryEntry]]) -> bytes:
    """Return the header and entries of GROUP as they stand in a listing."""
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


def _pack_attribute(name: bytes, value: bytes) -> bytes:
    """Return an extended attribute as it stands in its table."""
    kind, prefix = next(
        (kind, prefix) for kind, prefix in PREFIXES.items() if name.startswith(prefix)
    )
    short = name[len(prefix) :]
    return struct.pack("<HH", kind, len(short)) + short + struct.pack("<I", len(value)) + value


def make_tables(
    image: Squashfs, writer: Writer, time: int
) -> tuple[Superblock, list[bytes | memoryview]]:
    """Return the superblock, and all tables in their order: what follows the data of WRITER."""
    out: list[bytes | memoryview] = []
    at = writer.data.end

    def add(*data: bytes | memoryview) -> int:
        """Add DATA to what is written. Return where it begins in the file."""
        nonlocal at
        began = at
        for one in data:
            out.append(one)
            at += len(one)
        return began

    def indexed(layout: str, rows: Iterable[tuple[int, ...]], head: bytes = b"") -> int:
        """Add a table of ROWS: its blocks, then HEAD, then where each block lies.

        Return where HEAD begins, which is what the superblock names.
        """
        data = b"".join(struct.pack(layout, *row) for row in rows)
        blocks = [data[start : start + METADATA] for start in range(0, len(data), METADATA)]
        places = [add(pack_block(block, image.codec)) for block in blocks]
        return add(head, struct.pack(f"<{len(places)}Q", *places))

    # In the order in which mksquashfs writes them, on which `Squashfs._end_of_folders` depends.
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

    flags = image.super.flags
    if writer.sets:
        flags &= ~NO_XATTRS
    superblock = replace(
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
    )
    return superblock, out
