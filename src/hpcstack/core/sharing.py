"""What the group of administrators shares, where site.yaml names one (`group`).

All below the site's folders can then be written by that group. Folders hand it on to what is made
in them (set-gid), and a file that one member wrote, another can replace. Without a group everything
is its owner's alone to write: modes 755 and 644.

Only what is ours is handed over, and by descriptor, since a member of the group may swap any entry
meanwhile.
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

# Two cells, as lists: one entry once the site's file is read (one site a process), and none where it
# names no group, or no publishers.
_shared: list[int] = []  # the group's number
_publishers: list[frozenset[int]] = []  # the user ids whose records are believed

FOLDER_MODE = 0o2775  # of a folder that is the group's


def share_with_group(group: str) -> None:
    """Share what is written from now on with GROUP.

    Nothing is shared where GROUP is empty, where we are no member of it, or where this machine does
    not know it: a compute node need not (`hpcstack doctor` says so).
    """
    _shared.clear()
    if not group:
        return
    try:
        number = grp.getgrnam(group).gr_gid
    except KeyError:  # no such group on this machine
        return
    if os.geteuid() == 0 or number in (os.getegid(), *os.getgroups()):
        _shared.append(number)


def trust_publishers(publishers: Iterable[str]) -> None:
    """From now on believe records of what is published only from PUBLISHERS, root and ourselves.

    PUBLISHERS are names or user ids; a name that this machine does not know is nobody's. Where
    there are none, whoever may write the records is believed.
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
    """Return whether the site says whose records count."""
    return bool(_publishers)


def is_publisher(number: int) -> bool:
    """Return whether we believe records that the user NUMBER wrote."""
    return not _publishers or number in _publishers[0] or number in trusted_ids()


def may_publish() -> bool:
    """Return whether others believe records that we write."""
    return not _publishers or os.geteuid() == 0 or os.geteuid() in _publishers[0]


def is_shared() -> bool:
    """Return whether a group shares what we write."""
    return bool(_shared)


def shared_mode(plain: int) -> int:
    """Return the mode of a file that would have the mode PLAIN without a group.

    Where a group shares it, the group may do what its owner may. What is its owner's alone stays
    so.
    """
    if not _shared or not plain & 0o070:
        return plain
    owners_rights_for_the_group = (plain & 0o700) >> 3
    return plain | owners_rights_for_the_group


def log_mode() -> int:
    """Return the mode of a build's log.

    What a base or a recipe prints is nobody else's to read, except for the group.
    """
    return 0o640 if _shared else 0o600


def shared_umask() -> int:
    """Return the umask under which the site's folders are written."""
    return 0o002 if _shared else 0o022


def make_shared_folder(folder: Path) -> None:
    """Make FOLDER, where it is missing, the group's, and so what is made in it.

    Without a group do nothing: a caller that needs FOLDER in any case makes it first.
    """
    if not _shared:
        return
    descriptors.make_folder(folder, FOLDER_MODE, _shared[0])
    with contextlib.suppress(OSError), descriptors.hold_folder(folder) as descriptor:
        _open_to_group(descriptor)


def open_old(top: Path) -> None:
    """Hand over the folders in TOP that are ours and were made before the site had a group."""
    if not _shared:
        return
    for name in descriptors.names_in(top):
        folder = top / name
        with contextlib.suppress(OSError):
            about = descriptors.stat_path(folder)
            is_ours = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
            if is_ours and not _is_open(about):
                hand_over(folder, old=True)


def _is_open(about: os.stat_result) -> bool:
    """Return whether a folder is the group's, open to it, and hands it on."""
    return about.st_gid == _shared[0] and about.st_mode & 0o2070 == 0o2070


def hand_over(folder: Path, *, old: bool = False) -> None:
    """Give FOLDER and everything of ours in it to the group; do nothing where it is not ours.

    In an OLD one, which was made before the site had a group, what was its owner's alone stays so.
    What another user owns is left as it is, and not entered: that user's own next command hands it
    over.
    """
    if not _shared:
        return
    for visit in descriptors.walk_folders(folder):
        if os.fstat(visit.descriptor).st_uid != os.geteuid():
            return  # FOLDER itself is another's; those below it are not entered by walk_folders
        _open_to_group(visit.descriptor, old=old)
        for name in visit.others:
            with contextlib.suppress(OSError):
                _hand_over_file(visit.descriptor, name)


def _open_to_group(descriptor: int, *, old: bool = False) -> None:
    """Make the open folder of DESCRIPTOR the group's, if it is ours.

    An OLD one that only its owner could enter stays as it is.
    """
    about = os.fstat(descriptor)
    was_open_to_group = about.st_mode & 0o050
    if about.st_uid == os.geteuid() and not _is_open(about) and (was_open_to_group or not old):
        descriptors.set_marks(descriptor, FOLDER_MODE, _shared[0])


def _hand_over_file(around: int, name: str) -> None:
    """Make the file NAME in the folder AROUND the group's, if it is ours.

    A file with more than one name is left: somebody may have linked to any file of ours.
    """
    descriptor = os.open(name, descriptors.READ, dir_fd=around)
    try:
        about = os.fstat(descriptor)
        if stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and about.st_nlink == 1:
            descriptors.set_marks(descriptor, shared_mode(about.st_mode & 0o777), _shared[0])
    finally:
        os.close(descriptor)
