"""What a group of administrators shares (`group` in site.yaml): all below the site's folders is the group's to write.

Folders carry the group on to what is made in them (setgid) and are open to it; a file that one of them wrote, another
replaces. Without a group everything is as its owner's: 755 and 644.
"""

from __future__ import annotations

import contextlib
import grp
import os
from pathlib import Path

_shared: list[int] = []  # the group's number, once the site's is known: one site a process


def share(group: str) -> None:
    """From now on what is written is GROUP's, too; nothing for an empty one, who is not a member, or a machine that
    does not know the group: a compute node need not (`hpcstack doctor` says so)."""
    _shared.clear()
    if not group:
        return
    try:
        number = grp.getgrnam(group).gr_gid
    except KeyError:
        return
    if os.geteuid() == 0 or number in (os.getegid(), *os.getgroups()):
        _shared.append(number)


def is_shared() -> bool:
    return bool(_shared)


def mode(plain: int) -> int:
    """PLAIN for a file, the group's bits as its owner's where a group shares it. What is its owner's alone stays so."""
    return plain | (plain & 0o700) >> 3 if _shared and plain & 0o070 else plain


def log_mode() -> int:
    """Of the log of one build: what a base or a recipe prints is nobody else's, but the group's."""
    return 0o640 if _shared else 0o600


def mask() -> int:
    """The umask under which the site's folders are written."""
    return 0o002 if _shared else 0o022


def make_folder(folder: Path) -> None:
    """FOLDER there, and the group's, so that what is made in it is, too."""
    if not _shared:
        return
    if not folder.is_dir():
        make_folder(folder.parent) if not folder.parent.is_dir() else None
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o755)
    _open(folder)


def open_old(top: Path) -> None:
    """Folders below TOP that are ours and were made before there was a group are the group's, with all in them."""
    if not _shared or not top.is_dir():
        return
    for folder in top.iterdir():
        if not folder.is_symlink() and folder.is_dir() and not _is_open(folder.lstat()):
            _open(folder)
            hand_over(folder, old=True)


def _is_open(about: os.stat_result) -> bool:
    return about.st_gid == _shared[0] and about.st_mode & 0o2070 == 0o2070


def hand_over(folder: Path, *, old: bool = False) -> None:
    """All in FOLDER, which is ours and new, is the group's, too; of an OLD one what was its owner's alone stays so."""
    if not _shared:
        return
    for here, _, names in os.walk(folder):
        _open(Path(here), old=old)
        for name in names:
            with contextlib.suppress(OSError):  # a link, or another owner's: his own next verb hands it over
                _hand_over_file(Path(here) / name)


def _hand_over_file(path: Path) -> None:
    """By a descriptor: a member of the group may put a link in its place meanwhile."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.fchown(descriptor, -1, _shared[0])
        os.fchmod(descriptor, mode(os.fstat(descriptor).st_mode & 0o777))
    finally:
        os.close(descriptor)


def _open(folder: Path, *, old: bool = False) -> None:
    if _is_open(folder.lstat()):
        return
    with contextlib.suppress(NotADirectoryError, PermissionError):  # a link; another owner's
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            about = os.fstat(descriptor)
            if about.st_uid == os.geteuid() and (about.st_mode & 0o050 or not old):
                os.fchown(descriptor, -1, _shared[0])
                os.fchmod(descriptor, 0o2775)
        finally:
            os.close(descriptor)
