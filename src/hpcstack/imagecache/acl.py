"""Read and write POSIX ACLs of a file: which users may read it besides its owner.

The kernel keeps them in an extended attribute, whose form is that of linux/posix_acl_xattr.h. What
they mean: https://man7.org/linux/man-pages/man5/acl.5.html.
"""

from __future__ import annotations

import errno
import os
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

NAME, VERSION = "system.posix_acl_access", 2
OWNER, USER, GROUP, MASK, OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
READ, READ_WRITE = 4, 6
NOBODY = 0xFFFFFFFF  # the id in entries that are not of a certain user
NONE = (errno.ENODATA, errno.EOPNOTSUPP, errno.ENOTSUP)  # no ACL, or a filesystem without them


def list_readers(path: Path) -> set[int]:
    """Return the ids of the users whom PATH's ACL lets read it; none if it has no ACL."""
    try:
        value = os.getxattr(path, NAME)
    except OSError as error:
        if error.errno in NONE:
            return set()
        raise
    entries = struct.iter_unpack("<HHI", value[4:])  # after the version
    return {user for tag, mode, user in entries if tag == USER and mode & READ}


def set_readers(path: Path, users: set[int]) -> None:
    """Let USERS read PATH, and nobody else but its owner, in one system call.

    Raise OSError if the filesystem has no ACLs, or no room for so many entries.
    """
    if not users and not list_readers(path):
        return
    entries = [(OWNER, READ_WRITE, NOBODY)]
    entries += [(USER, READ, user) for user in sorted(users)]
    entries += [(GROUP, 0, NOBODY), (MASK, READ, NOBODY), (OTHER, 0, NOBODY)]
    packed = [struct.pack("<HHI", *entry) for entry in entries]
    os.setxattr(path, NAME, struct.pack("<I", VERSION) + b"".join(packed))


def keeps_acls(folder: Path) -> bool:
    """Return whether the filesystem of FOLDER has ACLs."""
    try:
        os.getxattr(folder, NAME)
    except OSError as error:
        return error.errno == errno.ENODATA
    return True
