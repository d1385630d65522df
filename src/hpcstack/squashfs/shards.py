"""Pack folders with many names in time proportional to the names.

A packer that reads a tar looks for each name in a list of all names of its folder: 120,000 files in
one folder take tar2sqfs two minutes, and in the order of a hash half an hour. So the packer gets
such a folder in shards, which are folders in it. When it is done, the tables of its squashfs are
written anew, and the folder has all names itself. The data stay as they are.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hpcstack.squashfs.copy import write_all
from hpcstack.squashfs.inode import DIR, DirectoryEntry
from hpcstack.squashfs.read import Squashfs
from hpcstack.squashfs.tree import Folder, Merged, open_tree_folder
from hpcstack.squashfs.write import PADDED, Writer, make_tables

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

WIDE = 1024  # names; a folder with more of them has shards
SHARD = 512  # names in a shard: a packer compares each name with half of them
PREFIX = ".hpcstack-shard-"  # of a shard's name


class Shards:
    """Where a packer gets each name of an image."""

    def __init__(self) -> None:
        self.wide: set[str] = set()  # folders that have shards, by their paths in the image
        self._counts: dict[str, int] = {}  # {folder: names that were placed in it}
        self._folders: dict[str, str] = {"": ""}  # {folder: where the packer has it}
        self._numbers: dict[str, int] = {}  # {name that is in a shard: the shard's number}

    def place(self, path: str, *, is_folder: bool) -> str:
        """Return where the packer gets PATH. A folder may be placed again, anything else not."""
        known = self._folders.get(path) if is_folder else None
        if known is not None:
            return known

        folder, _, name = path.rpartition("/")
        number = self._choose_shard(folder, name)
        if number:
            self._numbers[path] = number
        placed = self._join(folder, name, number)
        if is_folder:
            self._folders[path] = placed
        return placed

    def find(self, path: str) -> str:
        """Return where the packer has got PATH."""
        folder, _, name = path.rpartition("/")
        return self._join(folder, name, self._numbers.get(path, 0))

    def _choose_shard(self, folder: str, name: str) -> int:
        """Return the number of the shard for the next NAME in FOLDER, or 0 for no shard.

        A name that looks like a shard's goes into one: so in the folder itself, only shards do.
        """
        count = self._counts.get(folder, 0)
        self._counts[folder] = count + 1
        if count < WIDE and not name.startswith(PREFIX):
            return 0
        self.wide.add(folder)
        return 1 + count // SHARD

    def _join(self, folder: str, name: str, number: int) -> str:
        """Return the packer's path of NAME in FOLDER, in the shard NUMBER if it is not 0."""
        if number:
            name = f"{PREFIX}{number:06d}/{name}"
        above = self.place(folder, is_folder=True)
        return f"{above}/{name}" if above else name


def join_shards(path: Path, wide: Iterable[str]) -> None:
    """Give the folders WIDE of the squashfs PATH the names that are in their shards.

    PATH is changed in place and synced to disk. Raise Unreadable if it is not what a packer has
    just made.
    """
    with Squashfs(path) as image:
        merged = Merged(image, [])
        for folder in sorted(wide, key=lambda one: one.count("/")):  # those above come first
            names = [name for name in folder.encode("utf-8", "surrogateescape").split(b"/") if name]
            _join_folder(image, _open_path(image, merged.root, names))
        writer = Writer(merged)
        superblock, tables = make_tables(image, writer, image.super.time)
        at = writer.data.end

    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        for data in tables:
            write_all(file, data, at)
            at += len(data)
        os.ftruncate(file, at)
        os.ftruncate(file, at + -at % PADDED)
        write_all(file, superblock.pack(), 0)
        os.fsync(file)
    finally:
        os.close(file)


def _open_path(image: Squashfs, root: Folder, names: list[bytes]) -> Folder:
    """Return the folder at NAMES below ROOT; it and those above it will be written anew."""
    folder = root
    for name in names:
        below = folder.children[name]
        if isinstance(below, DirectoryEntry):
            below = folder.children[name] = open_tree_folder(image, below.reference)
        assert isinstance(below, Folder)
        folder = below
    return folder


def _join_folder(image: Squashfs, folder: Folder) -> None:
    """Move what lies in the shards of FOLDER into it."""
    prefix = PREFIX.encode()
    names = [name for name in folder.children if name.startswith(prefix)]
    shards = [folder.children.pop(name) for name in names]  # a name in one may be another's
    for shard in shards:
        assert isinstance(shard, DirectoryEntry)
        for name, entry in image.listing(image.inode(shard.reference)).items():
            # A folder's inode names the folder above it: it is written anew, too.
            is_folder = entry.kind == DIR
            folder.children[name] = open_tree_folder(image, entry.reference) if is_folder else entry
