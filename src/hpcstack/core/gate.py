"""The gate: what a folder holds that more than one user can write.

Whoever can write there can put bytes, names and code under any name. So whatever an act with more
rights takes from such a folder (publish, promote, build, sign, repair, the spider cache, gc, sync,
the catalogue), it asks here first whose it is. The answer is always about a descriptor that is
held open, never about a path, which could lead elsewhere by then. docs/security.md has the table of
these folders.

Tested in tests/hostile/test_colleagues.py.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from hpcstack.core import descriptors
from hpcstack.core.descriptors import find_user_name
from hpcstack.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hpcstack.core.sharing import Sharing

WRITABLE_BY_OTHERS = 0o022


def explain_disbelief(about: os.stat_result, sharing: Sharing) -> str:
    """Return why a file or a folder is not its publisher's word, as the end of a sentence.

    Empty where it is: a publisher owns it, and of a file nobody else can change the bytes. Where
    the site names no publishers, whoever may write there is believed.
    """
    if not sharing.is_publisher(about.st_uid):
        return f"belongs to {find_user_name(about.st_uid)}, who is no publisher of this site"
    can_be_changed = stat.S_ISREG(about.st_mode) and about.st_mode & WRITABLE_BY_OTHERS
    if sharing.names_publishers and can_be_changed:
        return "can be written by others than its owner, and the site names its publishers"
    return ""


def check_publishers_word(descriptor: int, path: Path, sharing: Sharing) -> None:
    """Raise InputError unless what DESCRIPTOR holds open, called PATH, is a publisher's word."""
    about = os.fstat(descriptor)
    why = explain_disbelief(about, sharing)
    if not why:
        return
    tip = "modules.publishers in site.yaml names the publishers"
    if sharing.is_publisher(about.st_uid):
        tip = f"look whether it is as it was written, and then: chmod go-w {path}"
    raise InputError(f"{path} {why}", tip, page="group-of-administrators")


def check_names_stay(descriptor: int, folder: Path, sharing: Sharing) -> None:
    """Raise InputError where somebody who is no publisher can rename files in an open FOLDER.

    So a stranger can who owns it, or who may write to it where it is not sticky.
    """
    check_publishers_word(descriptor, folder, sharing)
    mode = os.fstat(descriptor).st_mode
    if sharing.names_publishers and mode & WRITABLE_BY_OTHERS and not mode & stat.S_ISVTX:
        raise InputError(
            f"whoever may write to {folder} can give names in it to other files",
            f"chmod +t {folder}",
            page="group-of-administrators",
        )


def walk_trusted(top: Path, sharing: Sharing) -> Iterator[descriptors.Visit]:
    """Yield each folder of the tree TOP that a publisher made, as `descriptors.walk_folders` does.

    Of the names in it, those that others made are left out.
    """
    refused: set[str] = set()
    for visit in descriptors.walk_folders(top, anyones=True):
        around = visit.path.rpartition("/")[0]
        is_trusted = not explain_disbelief(os.fstat(visit.descriptor), sharing)
        if (visit.path and around in refused) or not is_trusted:
            refused.add(visit.path)
            visit.folders.clear()
            continue
        others = [name for name in visit.others if _is_trusted(visit.descriptor, name, sharing)]
        yield descriptors.Visit(visit.descriptor, visit.path, visit.folders, others)


def _is_trusted(around: int, name: str, sharing: Sharing) -> bool:
    """Return whether a publisher made NAME, a file or a link in the folder AROUND.

    Whoever then reads a file asks again, about what was opened.
    """
    try:
        about = os.stat(name, dir_fd=around, follow_symlinks=False)
    except OSError:
        return False
    return not explain_disbelief(about, sharing)
