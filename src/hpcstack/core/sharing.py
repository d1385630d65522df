"""Who shares what is written for a site, and whose records are believed there.

All below the site's folders can be written by its `group`, where site.yaml names one. Folders hand
it on to what is made in them (set-gid), and a file that one member wrote, another can replace.
Without a group everything is its owner's alone to write: modes 755 and 644.

Only what is ours is handed over, and by descriptor, since a member of the group may swap any entry
meanwhile.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from hpcstack.core import descriptors
from hpcstack.core.namespaces import list_trusted_ids

if TYPE_CHECKING:
    from pathlib import Path

FOLDER_MODE = 0o2775  # of a folder that is the group's


@dataclass(frozen=True)
class Sharing:
    """A site's group, by number, and the user ids of its publishers.

    Without a group nothing is shared. Without publishers, whoever may write the records of what is
    published is believed.
    """

    group: int | None = None
    publishers: frozenset[int] | None = None

    # -- whose records are believed

    @property
    def names_publishers(self) -> bool:
        """Whether the site says whose records count."""
        return self.publishers is not None

    def is_publisher(self, number: int) -> bool:
        """Return whether we believe records that the user NUMBER wrote."""
        return self.publishers is None or number in self.publishers or number in list_trusted_ids()

    @property
    def may_publish(self) -> bool:
        """Whether others believe records that we write."""
        return self.publishers is None or os.geteuid() == 0 or os.geteuid() in self.publishers

    # -- what the group may do

    @property
    def has_group(self) -> bool:
        """Whether a group shares what we write."""
        return self.group is not None

    def widen_mode(self, plain: int) -> int:
        """Return the mode of a file that would have the mode PLAIN without a group.

        Where a group shares it, the group may do what its owner may. What is its owner's alone
        stays so. Where the site names its publishers, who wrote a file must show: then a member
        can replace it by a file of their own, but not change it.
        """
        if self.names_publishers:
            return plain & ~0o022
        if not self.has_group or not plain & 0o070:
            return plain
        owners_rights_for_the_group = (plain & 0o700) >> 3
        return plain | owners_rights_for_the_group

    @property
    def log_mode(self) -> int:
        """The mode of a build's log.

        What a base or a recipe prints is nobody else's to read, except for the group.
        """
        return 0o640 if self.has_group else 0o600

    @property
    def umask(self) -> int:
        """The umask under which the site's folders are written."""
        return 0o002 if self.has_group else 0o022

    def make_folder(self, folder: Path) -> None:
        """Make FOLDER, where it is missing, the group's, and so what is made in it.

        Without a group do nothing: a caller that needs FOLDER in any case makes it first.
        """
        if self.group is None:
            return
        descriptors.make_folder(folder, FOLDER_MODE, self.group)
        with contextlib.suppress(OSError), descriptors.hold_folder(folder) as descriptor:
            self._open_to_group(descriptor)

    def make_own_names_folder(self, folder: Path) -> None:
        """Make FOLDER the group's, as `make_folder` does, in which names are their owners' alone.

        Where the site names its publishers, the folder is sticky: a member can put files there, but
        not remove another's, or give its name to another file.
        """
        self.make_folder(folder)
        if self.group is None or not self.names_publishers:
            return
        with contextlib.suppress(OSError), descriptors.hold_folder(folder) as descriptor:
            about = os.fstat(descriptor)
            if about.st_uid == os.geteuid() and not about.st_mode & stat.S_ISVTX:
                descriptors.set_marks(descriptor, FOLDER_MODE | stat.S_ISVTX)

    def open_old(self, top: Path) -> None:
        """Hand over the folders in TOP that are ours and were made before the site had a group."""
        if not self.has_group:
            return
        for name in descriptors.list_names_in(top):
            folder = top / name
            with contextlib.suppress(OSError):
                about = descriptors.stat_path(folder)
                is_ours = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
                if is_ours and not self._is_open(about):
                    self.hand_over(folder, old=True)

    def hand_over(self, folder: Path, *, old: bool = False) -> None:
        """Give FOLDER and everything of ours in it to the group; do nothing where it is not ours.

        In an OLD one, which was made before the site had a group, what was its owner's alone stays
        so. What another user owns is left as it is, and not entered: that user's own next command
        hands it over.
        """
        if not self.has_group:
            return
        for visit in descriptors.walk_folders(folder):
            if os.fstat(visit.descriptor).st_uid != os.geteuid():
                return  # FOLDER itself is another's; those below it are not entered by walk_folders
            self._open_to_group(visit.descriptor, old=old)
            for name in visit.others:
                with contextlib.suppress(OSError):
                    self._hand_over_file(visit.descriptor, name)

    def _is_open(self, about: os.stat_result) -> bool:
        """Return whether a folder is the group's, open to it, and hands it on."""
        return about.st_gid == self.group and about.st_mode & 0o2070 == 0o2070

    def _open_to_group(self, descriptor: int, *, old: bool = False) -> None:
        """Make the open folder of DESCRIPTOR the group's, if it is ours.

        An OLD one that only its owner could enter stays as it is.
        """
        assert self.group is not None
        about = os.fstat(descriptor)
        is_ours = about.st_uid == os.geteuid()
        was_open_to_group = about.st_mode & 0o050
        if is_ours and not self._is_open(about) and (was_open_to_group or not old):
            descriptors.set_marks(descriptor, FOLDER_MODE, self.group)

    def _hand_over_file(self, around: int, name: str) -> None:
        """Make the file NAME in the folder AROUND the group's, if it is ours.

        A file with more than one name is left: somebody may have linked to any file of ours.
        """
        assert self.group is not None
        descriptor = os.open(name, descriptors.READ, dir_fd=around)
        try:
            about = os.fstat(descriptor)
            is_ours = about.st_uid == os.geteuid() and about.st_nlink == 1
            if stat.S_ISREG(about.st_mode) and is_ours:
                mode = self.widen_mode(about.st_mode & 0o777)
                descriptors.set_marks(descriptor, mode, self.group)
        finally:
            os.close(descriptor)


ALONE = Sharing()  # what nobody shares, and whose records anybody may have written


@cache
def find_sharing(group: str, publishers: tuple[str, ...]) -> Sharing:
    """Return the Sharing with GROUP and PUBLISHERS, which are names or user ids.

    There is no group where we are no member of it, or where this machine does not know it: a
    compute node need not (`hpcstack doctor` says so). A publisher whom this machine does not know
    is nobody.
    """
    return Sharing(_find_group(group), _find_publishers(publishers))


def _find_group(group: str) -> int | None:
    """Return the number of GROUP; None where it is empty or unknown, or we are no member."""
    if not group:
        return None
    try:
        number = grp.getgrnam(group).gr_gid
    except KeyError:
        return None
    if os.geteuid() == 0 or number in (os.getegid(), *os.getgroups()):
        return number
    return None


def _find_publishers(publishers: tuple[str, ...]) -> frozenset[int] | None:
    """Return the user ids of PUBLISHERS; None where there are none."""
    if not publishers:
        return None
    numbers = {int(name) for name in publishers if name.isdecimal()}
    for name in publishers:
        with contextlib.suppress(KeyError):
            numbers.add(pwd.getpwnam(name).pw_uid)
    return frozenset(numbers)
