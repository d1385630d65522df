"""Files that a user names as outputs.

They are written through a link of the user's own and into a device, but never through a link that
a stranger made, nor through one that git may have brought (core/carried.py).

Tested in tests/hostile/test_neighbours.py.
"""

from __future__ import annotations

import os
import re
from typing import IO, TYPE_CHECKING

from hpcstack.core.carried import check_carried_output
from hpcstack.core.errors import InputError, StoreError
from hpcstack.core.files import write_text

if TYPE_CHECKING:
    from pathlib import Path

CONTROL_OR_BROKEN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def is_special(path: Path) -> bool:
    """Return whether PATH is there and is neither a file nor a folder.

    A rename would replace such a device or pipe by a file.
    """
    return path.exists() and not path.is_file() and not path.is_dir()


def new_file(path: Path, *, force: bool = False) -> Path:
    """Return PATH, absolute and with links followed, as the place of a file to be made.

    Raise InputError where something is in the way and FORCE is not given, StoreError where no file
    can be made there.
    """
    path = _follow_own_link(path).absolute()
    if CONTROL_OR_BROKEN.search(str(path)):
        raise InputError(f"{str(path)!r} contains unprintable characters", "name another file")
    if is_special(path) or path.is_dir():
        raise InputError(f"{path} is not a regular file", "name a file")
    if path.exists() and not force:
        raise InputError(f"{path} already exists", "name another file, or remove it first")
    above = next(parent for parent in path.parents if parent.exists())
    if not os.access(above, os.W_OK | os.X_OK):
        raise StoreError(f"{above} is not writable by you", "name a file elsewhere")
    return path


def open_output(path: Path) -> IO[str]:
    """Open the file that a user named as an output, to be written while the command runs.

    Its links, devices and pipes are those of `write_output`. Raise OSError as open(2) does.
    """
    if not _is_of_the_system(path):
        target = _follow_own_link(path)
        if not is_special(path):
            path = target
    return path.open("w", encoding="utf-8")


def write_output(path: Path, text: str, mode: int = 0o644) -> None:
    """Write TEXT into the file that a user named as an output.

    A link is followed. A device or a pipe is written into, not replaced.
    """
    if _is_of_the_system(path):
        path.write_text(text, encoding="utf-8")
        return
    target = _follow_own_link(path)  # refuses a stranger's link, also one to a device
    if is_special(path):
        path.write_text(text, encoding="utf-8")
        return
    write_text(target, text, mode)


def _is_of_the_system(path: Path) -> bool:
    """Return whether PATH is named as a device, or as one of a process's descriptors.

    A shell's >(...) is one, /dev/fd/63, whose link leads to no path.
    """
    return path.is_relative_to("/dev") or path.is_relative_to("/proc")


def _follow_own_link(path: Path) -> Path:
    """Return where the link PATH leads if it is the user's own or root's; PATH if it is no link.

    Raise InputError for a stranger's, and for one that git may have brought.
    """
    check_carried_output(path)
    if not path.is_symlink():
        return path
    if path.lstat().st_uid not in (os.geteuid(), 0):
        raise InputError(
            f"{path} is a link that somebody else has put there", "name another file, or remove it"
        )
    return path.resolve()
