"""Modes and group of what is published: as the site says, whatever the publisher's umask is.

Tested in tests/hostile/test_neighbours.py and tests/integration/test_publishing_faults.py.
"""

from __future__ import annotations

import contextlib
import grp
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core import descriptors
from hpcstack.core.errors import InputError
from hpcstack.core.files import without_links

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Permissions:
    """The mode and the group of files and folders that are published."""

    mode: int = 0o644  # of files; folders get x wherever files have r
    group: str = ""  # its name; empty: the publisher's own
    # Whether the group may write to folders although it may not write files.
    opens_folders: bool = False

    @property
    def group_number(self) -> int:
        """The number of the group; -1 where no group is named, which leaves a file's as it is.

        InputError where there is no such group.
        """
        if not self.group:
            return -1
        try:
            return grp.getgrnam(self.group).gr_gid
        except KeyError:
            raise InputError(
                f"there is no group {self.group!r}",
                "`modules.group` in site.yaml",
                page="group-of-administrators",
            ) from None

    @property
    def _program_mode(self) -> int:
        """The mode of files that can be run: x wherever it has r."""
        return self.mode | (self.mode & 0o444) >> 2

    @property
    def folder_mode(self) -> int:
        """The mode of folders: x wherever it has r, and the owner may write."""
        return self._program_mode | 0o200 | 0o020 * self.opens_folders

    def write(self, path: Path, text: str) -> None:
        """Write TEXT into PATH by one rename, with this mode and group. A script can be run."""
        mode = self._program_mode if text.startswith("#!") else self.mode
        descriptors.write_file(path, text.encode(), mode, self.group_number)

    def folder(self, top: Path, path: Path) -> None:
        """Make the folder PATH, and those between TOP and it. Only new ones get mode and group."""
        without_links(top, path, ours=True)
        descriptors.make_folder(path, self.folder_mode, self.group_number)

    def mark_files(self, top: Path) -> None:
        """Give the files below TOP, which is ours and new, this mode and group.

        What a link leads to is not touched.
        """
        for visit in descriptors.walk_folders(top):
            for name in visit.others:
                with contextlib.suppress(OSError):  # a link cannot be opened so
                    self._mark_file(visit.descriptor, name)

    def mark_tree(self, top: Path) -> None:
        """Give TOP and all below it this mode and group.

        Folders come last, and the innermost first: from then on others may write to them.
        """
        self.mark_files(top)
        folders = [visit.path for visit in descriptors.walk_folders(top)]
        for path in reversed(folders):
            with descriptors.hold_folder(top / path) as descriptor:
                descriptors.set_marks(descriptor, self.folder_mode, self.group_number)

    def _mark_file(self, around: int, name: str) -> None:
        """Mark the file NAME in the folder with the descriptor AROUND, if it is an ordinary one."""
        descriptor = os.open(name, descriptors.READ, dir_fd=around)
        try:
            about = os.fstat(descriptor)
            # A second name of the file could be somewhere else, where its mode must not change.
            is_ours = about.st_uid == os.geteuid() and about.st_nlink == 1
            if stat.S_ISREG(about.st_mode) and is_ours:
                can_be_run = about.st_mode & 0o100
                mode = self._program_mode if can_be_run else self.mode
                descriptors.set_marks(descriptor, mode, self.group_number)
        finally:
            os.close(descriptor)

    def hidden_from(self, path: Path) -> Path | None:
        """Return the first folder on the way to PATH, or PATH itself, that keeps others out.

        None where they can read PATH, or this mode does not mean them to.
        """
        if not self.mode & 0o004:
            return None
        for one in (*reversed(path.parents), path):
            wanted = 0o001 if one.is_dir() else 0o004
            if not one.stat().st_mode & wanted:
                return one
        return None
