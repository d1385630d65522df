"""Read a SquashFS 4.0 file in place: its tables, inodes and folders, but not what files hold.

The format is described in https://dr-emann.github.io/squashfs/; what counts is the kernel's
fs/squashfs. Files are not trusted: every size is bounded before memory is taken for it.

Tested in tests/unit/squashfs/test_splice.py and tests/unit/squashfs/test_lookup.py.
"""

from __future__ import annotations

import itertools
import os
import stat
import struct
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING

from hpcstack.squashfs.codec import METADATA, Unreadable, find_codec
from hpcstack.squashfs.inode import (
    DIR,
    NONE,
    STORED,
    DirectoryEntry,
    Inode,
    read_entries,
    read_inode,
    read_numbers,
)
from hpcstack.squashfs.table import PLAIN, Cursor, Rows, Table, explain_damage

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator
    from pathlib import Path

# https://docs.kernel.org/filesystems/squashfs.html: the superblock begins with "hsqs"
MAGIC = 0x73717368
SUFFIXES = (".sqsh", ".squashfs", ".sqfs", ".sfs", ".sqs")
NOWHERE = 0xFFFFFFFFFFFFFFFF  # the place of a table that is not there
OPTIONS, NO_XATTRS = 0x400, 0x200  # flags
PREFIXES = {0: b"user.", 1: b"trusted.", 2: b"security."}
ELSEWHERE = 0x100  # a flag in an attribute's type: the value is in another place
LEAST = 3  # bytes of the smallest metadata block, with its head
MOST = METADATA // LEAST  # how many times larger a table can become when it is expanded
MOST_INODES = 1 << 23  # NVIDIA's images have 300,000
MOST_ROWS = 1 << 20  # of fragments, and of sets of attributes
MOST_LISTED = 32 << 20  # bytes of one folder's listing: a million names
SMALLEST_BLOCK, LARGEST_BLOCK = 12, 20  # powers of two, of the format
MAX_XATTRS = 256  # of one inode
ASKED = 1 << 12  # lookups of names that are remembered
MAX_VALUE = 1 << 16  # bytes of one attribute's value: Linux allows no more


def is_squashfs(path: Path) -> bool:
    """Whether PATH is a squashfs file.

    A file that this machine cannot read is judged by its name: nodes may have it.
    """
    try:
        # A pipe or a device is not opened: that may hang, or do something.
        if not stat.S_ISREG(path.stat().st_mode):
            return False
        with path.open("rb") as file:
            return file.read(4) == MAGIC.to_bytes(4, "little")
    except OSError:
        return path.suffix in SUFFIXES


@dataclass
class Superblock:
    """The first 96 bytes of the file, field by field."""

    magic: int
    inodes: int
    time: int
    block_size: int
    fragments: int
    compressor: int
    block_log: int
    flags: int
    ids: int
    major: int
    minor: int
    root: int
    used: int
    id_table: int
    xattr_table: int
    inode_table: int
    folder_table: int
    fragment_table: int
    export_table: int

    FORMAT = struct.Struct("<5I6H8Q")

    def pack(self) -> bytes:
        """Return the superblock's bytes."""
        return self.FORMAT.pack(*(getattr(self, one.name) for one in fields(self)))


class Squashfs:
    """The SquashFS file PATH, open until `close`.

    Raise Unreadable if it is something else, or damaged; that may also show only later.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked: dict[tuple[int, int, int, bytes], DirectoryEntry | None] = {}
        self.last_fragment = (NONE, b"")
        self.file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with explain_damage():
                self.super = self._superblock()
                self.codec = find_codec(self.super.compressor)
                self._tables()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Squashfs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self.file >= 0:
            os.close(self.file)
        self.file = -1

    def _superblock(self) -> Superblock:
        """Read the superblock, and check what it says. Raise Unreadable if it cannot be right."""
        data = os.pread(self.file, Superblock.FORMAT.size, 0)
        if len(data) != Superblock.FORMAT.size:
            raise Unreadable("it is no SquashFS 4.0")
        about = Superblock(*Superblock.FORMAT.unpack(data))
        if about.magic != MAGIC or (about.major, about.minor) != (4, 0):
            raise Unreadable("it is no SquashFS 4.0")

        size = os.fstat(self.file).st_size
        tables = [
            about.inode_table,
            about.folder_table,
            self._end_of_folders(about),
            about.id_table,
            about.used,
        ]
        if (
            about.used > size
            or about.inode_table < Superblock.FORMAT.size
            or sorted(tables) != tables
            or not SMALLEST_BLOCK <= about.block_log <= LARGEST_BLOCK
            or about.block_size != 1 << about.block_log
        ):
            raise Unreadable("its superblock says what cannot be")
        return about

    def _end_of_folders(self, about: Superblock) -> int:
        """Return where the table of folders ends.

        The superblock does not say so; it is where the next table's first block begins.
        """
        if about.fragments:
            return self._pointer(about.fragment_table)
        if about.export_table != NOWHERE:
            return self._pointer(about.export_table)
        return self._pointer(about.id_table)

    def _pointer(self, at: int) -> int:
        """Read the place in the file, of 8 bytes, that stands AT."""
        return int.from_bytes(os.pread(self.file, 8, at), "little")

    def _tables(self) -> None:
        """Open the tables of inodes and folders, and read that of users and groups."""
        about = self.super
        end = self._end_of_folders(about)
        self.inodes = Table(self.file, about.inode_table, about.folder_table, self.codec)
        self.folders = Table(self.file, about.folder_table, end, self.codec)
        ids = self._indexed(about.id_table, about.ids, 4, MOST_ROWS)
        self.ids: list[int] = [number for (number,) in struct.iter_unpack("<I", ids)]

    def _indexed(self, at: int, count: int, size: int, most: int) -> bytes:
        """Read a table of COUNT entries of SIZE bytes, whose blocks are listed at AT.

        Raise Unreadable for more than MOST entries, and for a list that cannot be right.
        """
        if count > most:
            raise Unreadable("a table has more entries than any image needs")
        blocks = -(-count * size // METADATA)  # rounded up
        if at + blocks * 8 > self.super.used:
            raise Unreadable("a table is larger than the file")
        listed = os.pread(self.file, blocks * 8, at)
        pointers = [place for (place,) in struct.iter_unpack("<Q", listed)]
        if not pointers:
            return b""

        table = Table(self.file, pointers[0], at, self.codec)
        places = [pointer - pointers[0] for pointer in pointers]
        # Each block must come after the one before: one block, named many times, could make a small
        # file a huge table.
        if any(table.extent(one)[1] > two for one, two in itertools.pairwise(places)):
            raise Unreadable("a table names a block twice")
        data = b"".join(table.block(place)[0] for place in places)
        if len(data) != count * size:
            raise Unreadable("a table is shorter than it should be")
        return data

    def fragments(self) -> Rows:
        """Return the table of fragments: (where it lies, its size as a data block's, unused)."""
        about = self.super
        data = b""
        if about.fragments:
            data = self._indexed(about.fragment_table, about.fragments, 16, MOST_ROWS)
        return Rows("<QII", data)

    @cached_property
    def fragment_rows(self) -> Rows:
        """The table of fragments, read when it is first needed; see `fragments`."""
        return self.fragments()

    def fragment_of(self, number: int) -> bytes:
        """Return the content of the fragment NUMBER. The last one that was asked for is kept."""
        if self.last_fragment[0] != number:
            if number >= len(self.fragment_rows):
                raise Unreadable("a file's tail is in a fragment that is not there")
            start, size, _ = self.fragment_rows[number]
            self.last_fragment = number, self.fragment(start, size)
        return self.last_fragment[1]

    def fragment(self, start: int, size: int) -> bytes:
        """Return the content of the fragment at START, with SIZE from its table."""
        if size & ~STORED > self.super.block_size:
            raise Unreadable("a fragment is larger than a block")
        data = os.pread(self.file, size & ~STORED, start)
        if size & STORED:
            return data
        return self.codec.expand(data, self.super.block_size)

    def exported(self) -> array[int] | None:
        """Return where each inode lies, by its number - 1; None if the image has no such table.

        The table is for images that are exported by NFS.
        """
        if self.super.export_table == NOWHERE:
            return None
        data = self._indexed(self.super.export_table, self.super.inodes, 8, MOST_INODES)
        return read_numbers("Q", data)

    def options(self) -> bytes:
        """Return the compressor's options, as they lie after the superblock; empty for defaults."""
        if not self.super.flags & OPTIONS:
            return b""
        size = int.from_bytes(os.pread(self.file, 2, Superblock.FORMAT.size), "little") & ~PLAIN
        return os.pread(self.file, min(size, 64), Superblock.FORMAT.size + 2)

    # -- inodes and folders

    def inode(self, reference: int) -> Inode:
        """Return the inode at REFERENCE, block << 16 | offset in the table of inodes."""
        with explain_damage():
            cursor = Cursor(self.inodes, reference >> 16, reference & 0xFFFF)
            found = read_inode(cursor, self.ids, self.super.block_size)
        if not 0 < found.number <= self.super.inodes:
            raise Unreadable("an inode has a number that cannot be")
        return found

    def root(self) -> Inode:
        """Return the inode of the image's root."""
        found = self.inode(self.super.root)
        if found.kind != DIR:
            raise Unreadable("its root is no folder")
        return found

    def listing(self, folder: Inode) -> dict[bytes, DirectoryEntry]:
        """Return {name: entry} of FOLDER, in the image's order."""
        with explain_damage():
            return dict(self._entries(folder))

    def entry(self, folder: Inode, name: bytes) -> DirectoryEntry | None:
        """Return the entry NAME of FOLDER, or None if it has none."""
        key = folder.start, folder.offset, folder.size, name
        if key not in self.asked:
            if len(self.asked) >= ASKED:
                self.asked.clear()
            with explain_damage():
                entries = self._entries(folder)
                self.asked[key] = next((entry for one, entry in entries if one == name), None)
        return self.asked[key]

    def _entries(self, folder: Inode) -> Iterator[tuple[bytes, DirectoryEntry]]:
        """Yield (name, entry) of FOLDER. The size in its inode is 3 more than its listing's."""
        if folder.size <= 3:
            return
        if folder.size > min(MOST * self.folders.size, MOST_LISTED):
            raise Unreadable("a folder is larger than any can be")
        data, _, _ = self.folders.read(folder.start, folder.offset, folder.size - 3)
        yield from read_entries(data)

    def find(self, path: bytes) -> Inode | None:
        """Return the inode of PATH, or None if there is nothing. Links are not followed."""
        found = self.root()
        for name in filter(None, path.split(b"/")):
            if found.kind != DIR:
                return None
            entry = self.entry(found, name)
            if entry is None:
                return None
            found = self.inode(entry.reference)
        return found

    def may_hold(self, name: bytes) -> bool:
        """Return whether a folder may have the name NAME in it; False only if none has.

        The bytes of the table are searched, and no folder is read: that is fast, but may find NAME
        as a part of something else.
        """
        with explain_damage():
            at, before = 0, b""
            while at < self.folders.size:
                data, at = self.folders.block(at)
                seen = before + data
                if name in seen:
                    return True
                before = seen[-len(name) :]  # a name may begin in one block and end in the next
        return False

    # -- attributes

    @cached_property
    def attributes(self) -> Attributes:
        """The table of extended attributes, read when it is first needed."""
        with explain_damage():
            return Attributes(self)

    def xattrs(self, inode: Inode) -> tuple[tuple[bytes, bytes], ...]:
        """Return (name, value) of each extended attribute of INODE."""
        if inode.xattr == NONE:
            return ()
        with explain_damage():
            return self.attributes.of(inode.xattr)


class Attributes:
    """The table of extended attributes of IMAGE.

    `keys` has their names and values, `sets` the rows (where in it, count, size), one for each set
    of attributes that an inode has.
    """

    def __init__(self, image: Squashfs) -> None:
        about = image.super
        self.sets = Rows("<QII", b"")
        self.keys = Table(image.file, 0, 0, image.codec)
        if about.xattr_table == NOWHERE:
            return

        start, count, _ = struct.unpack("<QII", os.pread(image.file, 16, about.xattr_table))
        # The keys end where the blocks of sets begin, or, without any, where their list would be.
        first = about.xattr_table
        if count:
            first = image._pointer(about.xattr_table + 16)
        self.keys = Table(image.file, start, first, image.codec)
        self.sets = Rows("<QII", image._indexed(about.xattr_table + 16, count, 16, MOST_ROWS))

    def of(self, number: int) -> tuple[tuple[bytes, bytes], ...]:
        """Return (name, value) of each attribute in the set NUMBER."""
        if number >= len(self.sets):
            raise Unreadable("an inode has attributes that are not there")
        where, count, _ = self.sets[number]
        if count > MAX_XATTRS:
            raise Unreadable("an inode has more attributes than any can have")
        cursor = Cursor(self.keys, where >> 16, where & 0xFFFF)
        return tuple(self._one(cursor) for _ in range(count))

    def _one(self, cursor: Cursor) -> tuple[bytes, bytes]:
        """Read the attribute at CURSOR. Its value may be elsewhere, if several inodes have it."""
        kind, length = cursor.take("<HH")
        name = PREFIXES.get(kind & 0xFF)
        if name is None:
            raise Unreadable(f"an attribute is of an unknown kind, {kind}")
        name += cursor.piece(length)
        value = self._value(cursor)
        if kind & ELSEWHERE:
            there = int.from_bytes(value, "little")
            value = self._value(Cursor(self.keys, there >> 16, there & 0xFFFF))
        return name, value

    def _value(self, cursor: Cursor) -> bytes:
        (length,) = cursor.take("<I")
        if length > MAX_VALUE:
            raise Unreadable("an attribute is larger than any can be")
        return cursor.piece(length)
