"""Modes and group of what is published, as the site says, whatever the umask of who publishes."""

from __future__ import annotations

import grp
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError
from hpcstack.core.files import without_links, write_text

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Permissions:
    """MODE of files (folders get x where they have r), and the GROUP that they belong to; empty is the publisher's."""

    mode: int = 0o644
    group: str = ""

    def write(self, path: Path, text: str) -> None:
        """TEXT into PATH by one rename, with these marks."""
        mode = self.mode | (self.mode & 0o444) >> 2 if text.startswith("#!") else self.mode
        write_text(path, text, mode)
        self.own(path)

    def folder(self, top: Path, path: Path) -> None:
        """PATH and what it lies in, as far as TOP, with these marks where they are new."""
        without_links(top, path, ours=True)
        if path.is_dir():
            return
        if path != top:
            self.folder(top, path.parent)
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(self.mode | 0o200 | (self.mode & 0o444) >> 2)
        self.own(path)

    def mark(self, path: Path) -> None:
        """A file or a folder that is there gets these marks; nothing that a link leads to does."""
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            kind = os.fstat(descriptor).st_mode
            if stat.S_ISDIR(kind) or stat.S_ISREG(kind):
                os.fchmod(descriptor, self.mode | ((self.mode & 0o444) >> 2 if stat.S_ISDIR(kind) else 0))
                self.own(path)
        finally:
            os.close(descriptor)

    def own(self, path: Path) -> None:
        if not self.group:
            return
        try:
            os.chown(path, -1, grp.getgrnam(self.group).gr_gid, follow_symlinks=False)
        except KeyError:
            raise InputError(f"there is no group {self.group!r}", "`modules.group` in site.yaml") from None

    def hidden_from(self, path: Path) -> Path | None:
        """The first part of PATH's way that others may not pass or read, where these marks would let them."""
        if not self.mode & 0o004:
            return None
        for one in (*reversed(path.parents), path):
            bits = one.stat().st_mode
            if not bits & (0o001 if one.is_dir() else 0o004):
                return one
        return None
