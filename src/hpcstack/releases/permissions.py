"""Modes and group of what is published, as the site says, whatever the umask of who publishes."""

from __future__ import annotations

import contextlib
import grp
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core import descriptors, sharing
from hpcstack.core.errors import InputError
from hpcstack.core.files import without_links

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Permissions:
    """MODE of files (folders get x where they have r), and the GROUP that they belong to; empty is
    the publisher's.
    """

    mode: int = 0o644
    group: str = ""

    @property
    def group_number(self) -> int:
        """The group's number; -1 where what is written keeps its own.

        InputError where there is no such group.
        """
        if not self.group:
            return -1
        try:
            return grp.getgrnam(self.group).gr_gid
        except KeyError:
            raise InputError(
                f"there is no group {self.group!r}", "`modules.group` in site.yaml"
            ) from None

    @property
    def folder_mode(self) -> int:
        return self.mode | 0o200 | (self.mode & 0o444) >> 2

    def write(self, path: Path, text: str) -> None:
        """TEXT into PATH by one rename, with these marks."""
        mode = self.mode | (self.mode & 0o444) >> 2 if text.startswith("#!") else self.mode
        descriptors.write_file(path, text.encode(), sharing.shared_mode(mode), self.group_number)

    def folder(self, top: Path, path: Path) -> None:
        """PATH and what it lies in, as far as TOP, with these marks where they are new."""
        without_links(top, path, ours=True)
        descriptors.make_folder(path, self.folder_mode, self.group_number)

    def mark_files(self, top: Path) -> None:
        """The files below TOP, which is ours and new, get these marks; nothing that a link leads to
        does.
        """
        for visit in descriptors.walk_folders(top):
            for name in visit.others:
                with contextlib.suppress(OSError):  # a link
                    self._mark_file(visit.descriptor, name)

    def mark_tree(self, top: Path) -> None:
        """All below TOP, and TOP, get these marks: folders last, since others may act in them from
        then on.
        """
        self.mark_files(top)
        folders = [visit.path for visit in descriptors.walk_folders(top)]
        for path in reversed(folders):
            with descriptors.hold_folder(top / path) as descriptor:
                descriptors.set_marks(descriptor, self.folder_mode, self.group_number)

    def _mark_file(self, around: int, name: str) -> None:
        descriptor = os.open(name, descriptors.READ, dir_fd=around)
        try:
            about = os.fstat(descriptor)
            if stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and about.st_nlink == 1:
                executable = about.st_mode & 0o100
                mode = self.mode | ((self.mode & 0o444) >> 2 if executable else 0)
                descriptors.set_marks(descriptor, mode, self.group_number)
        finally:
            os.close(descriptor)

    def hidden_from(self, path: Path) -> Path | None:
        """The first part of PATH's way that others may not pass or read, where these marks would
        let them.
        """
        if not self.mode & 0o004:
            return None
        for one in (*reversed(path.parents), path):
            bits = one.stat().st_mode
            if not bits & (0o001 if one.is_dir() else 0o004):
                return one
        return None
