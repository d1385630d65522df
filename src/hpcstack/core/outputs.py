"""Files that a user names as outputs: through a link of his own, into a device, never through a
stranger's link.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError, StoreError
from hpcstack.core.files import write_text

if TYPE_CHECKING:
    from pathlib import Path

CONTROL_OR_BROKEN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def is_special(path: Path) -> bool:
    """Whether PATH is there and is neither a file nor a folder: a rename would replace a device by
    a file.
    """
    return path.exists() and not path.is_file() and not path.is_dir()


def new_file(path: Path, *, force: bool = False) -> Path:
    """PATH, absolute, as the place of a file that is to be made.

    InputError where something is in the way.
    """
    path = _meant(path).absolute()
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


def write_output(path: Path, text: str, mode: int = 0o644) -> None:
    """TEXT into the file that a user named as an output: through a link; a device or a pipe stays
    what it is.
    """
    if path.is_relative_to("/dev") or path.is_relative_to("/proc"):
        path.write_text(text, encoding="utf-8")
        return
    _meant(path)
    if is_special(path):
        path.write_text(text, encoding="utf-8")
        return
    write_text(_meant(path), text, mode)


def _meant(path: Path) -> Path:
    """Where a link that a user named leads to, if it is the user's own or root's.

    InputError for a stranger's.
    """
    if not path.is_symlink():
        return path
    if path.lstat().st_uid not in (os.geteuid(), 0):
        raise InputError(
            f"{path} is a link that somebody else has put there", "name another file, or remove it"
        )
    return path.resolve()
