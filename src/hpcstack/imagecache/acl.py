"""POSIX ACLs of a file, as the kernel keeps them in an extended attribute: who else than the owner
may read it.

https://man7.org/linux/man-pages/man5/acl.5.html; the attribute's form is linux/posix_acl_xattr.h.
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
READ, READ_WRITE, NOBODY = 4, 6, 0xFFFFFFFF
NONE = (errno.ENODATA, errno.EOPNOTSUPP, errno.ENOTSUP)


def list_readers(path: Path) -> set[int]:
    """The user ids that may read PATH beside its owner."""
    try:
        value = os.getxattr(path, NAME)
    except OSError as error:
        if error.errno in NONE:
            return set()
        raise
    return {
        user
        for tag, mode, user in struct.iter_unpack("<HHI", value[4:])
        if tag == USER and mode & READ
    }


def set_readers(path: Path, users: set[int]) -> None:
    """Only the owner of PATH and USERS may read it, at once. OSError where the filesystem keeps no
    ACLs, or no more entries.
    """
    if not users and not list_readers(path):
        return
    entries = [(OWNER, READ_WRITE, NOBODY), *((USER, READ, user) for user in sorted(users))]
    entries += [(GROUP, 0, NOBODY), (MASK, READ, NOBODY), (OTHER, 0, NOBODY)]
    os.setxattr(
        path,
        NAME,
        struct.pack("<I", VERSION) + b"".join(struct.pack("<HHI", *entry) for entry in entries),
    )


def keeps_acls(folder: Path) -> bool:
    """Whether the filesystem of FOLDER keeps ACLs."""
    try:
        os.getxattr(folder, NAME)
    except OSError as error:
        return error.errno == errno.ENODATA
    return True
