"""What a group of administrators shares (`group` in site.yaml): all below the site's folders is the
group's to write.

Folders carry the group on to what is made in them (setgid) and are open to it; a file that one of
them wrote, another replaces. Without a group everything is as its owner's: 755 and 644.

Only what is ours is handed over, by descriptor: a member of the group may swap any entry meanwhile.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from typing import TYPE_CHECKING

from hpcstack.core import descriptors
from hpcstack.core.namespaces import trusted_ids

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_shared: list[int] = []  # the group's number, once the site's is known: one site a process
_publishers: list[
    frozenset[int]
] = []  # whose records are believed; none where the site names nobody

FOLDER_MODE = 0o2775  # of a folder that is the group's


def share_with_group(group: str) -> None:
    """From now on what is written is GROUP's, too; nothing for an empty one, who is not a member,
    or a machine that does not know the group: a compute node need not (`hpcstack doctor` says so).
    """
    _shared.clear()
    if not group:
        return
    try:
        number = grp.getgrnam(group).gr_gid
    except KeyError:
        return
    if os.geteuid() == 0 or number in (os.getegid(), *os.getgroups()):
        _shared.append(number)


def trust_publishers(publishers: Iterable[str]) -> None:
    """From now on records of what is published count only where one of PUBLISHERS (names, or
    numbers) has written them, root, or we. Names that this machine does not know are nobody's; none
    at all: whoever may write there.
    """
    _publishers.clear()
    named = tuple(publishers)
    numbers = {int(name) for name in named if name.isdecimal()}
    for name in named:
        with contextlib.suppress(KeyError):
            numbers.add(pwd.getpwnam(name).pw_uid)
    if named:
        _publishers.append(frozenset(numbers))


def names_publishers() -> bool:
    """Whether the site says whose records count."""
    return bool(_publishers)


def is_publisher(number: int) -> bool:
    """Whether records of the user NUMBER are believed by us."""
    return not _publishers or number in _publishers[0] or number in trusted_ids()


def may_publish() -> bool:
    """Whether others believe what we write."""
    return not _publishers or os.geteuid() == 0 or os.geteuid() in _publishers[0]


def is_shared() -> bool:
    return bool(_shared)


def shared_mode(plain: int) -> int:
    """PLAIN for a file, the group's bits as its owner's where a group shares it.

    What is its owner's alone stays so.
    """
    return plain | (plain & 0o700) >> 3 if _shared and plain & 0o070 else plain


def log_mode() -> int:
    """Of the log of one build: what a base or a recipe prints is nobody else's, but the group's."""
    return 0o640 if _shared else 0o600


def shared_umask() -> int:
    """The umask under which the site's folders are written."""
    return 0o002 if _shared else 0o022


def make_shared_folder(folder: Path) -> None:
    """FOLDER there, and the group's, so that what is made in it is, too."""
    if not _shared:
        return
    descriptors.make_folder(folder, FOLDER_MODE, _shared[0])
    with contextlib.suppress(OSError), descriptors.hold_folder(folder) as descriptor:
        _open_to_group(descriptor)


def open_old(top: Path) -> None:
    """Folders below TOP that are ours and were made before there was a group are the group's, with
    all in them.
    """
    if not _shared:
        return
    for name in descriptors.names_in(top):
        folder = top / name
        with contextlib.suppress(OSError):
            about = descriptors.stat_path(folder)
            if stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not _is_open(about):
                hand_over(folder, old=True)


def _is_open(about: os.stat_result) -> bool:
    return about.st_gid == _shared[0] and about.st_mode & 0o2070 == 0o2070


def hand_over(folder: Path, *, old: bool = False) -> None:
    """All in FOLDER, which is ours and new, is the group's, too; of an OLD one what was its owner's
    alone stays so.

    What another user owns is left as it is, and nobody goes into it: his own next verb hands it
    over.
    """
    if not _shared:
        return
    for visit in descriptors.walk_folders(folder):
        if os.fstat(visit.descriptor).st_uid != os.geteuid():
            return  # the top itself
        _open_to_group(visit.descriptor, old=old)
        for name in visit.others:
            with contextlib.suppress(OSError):
                _hand_over_file(visit.descriptor, name)


def _open_to_group(descriptor: int, *, old: bool = False) -> None:
    """The folder that DESCRIPTOR holds open is the group's, if it is ours."""
    about = os.fstat(descriptor)
    was_for_others = about.st_mode & 0o050
    if about.st_uid == os.geteuid() and not _is_open(about) and (was_for_others or not old):
        descriptors.set_marks(descriptor, FOLDER_MODE, _shared[0])


def _hand_over_file(around: int, name: str) -> None:
    """NAME in the folder AROUND.

    A file that has another name as well may be anything of ours: it stays as it is.
    """
    descriptor = os.open(name, descriptors.READ, dir_fd=around)
    try:
        about = os.fstat(descriptor)
        if stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and about.st_nlink == 1:
            descriptors.set_marks(descriptor, shared_mode(about.st_mode & 0o777), _shared[0])
    finally:
        os.close(descriptor)
