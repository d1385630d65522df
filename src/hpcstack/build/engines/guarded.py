"""Whether a step may have changed a library of the base's, by what its layer holds: without a walk through the image.

What may have is looked at inside, all of it (images/lib.sh, hpcstack_guard_libraries): a walk through a mounted image
of NVIDIA's takes seconds, and nearly no step touches one.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from hpcstack.core import descriptors
from hpcstack.core.errors import StoreError
from hpcstack.recipe.guard import LIBRARIES
from hpcstack.squashfs.codec import Unreadable
from hpcstack.squashfs.inode import DIR
from hpcstack.squashfs.read import Squashfs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

CHECK = "hpcstack_guard_check"  # of a step that may change none
OWN_AROUND, OWN_NAME = "opt", "hpcstack"
OPAQUE = ("user.overlay.opaque", "trusted.overlay.opaque")


def may_touch_libraries(upper: Path, base: Path, layers: Sequence[Path]) -> bool:
    """Whether the layer in UPPER names a library, or takes away a folder of the BASE, a squashfs, or of LAYERS.

    Also true where that cannot be told.
    """
    try:
        with Squashfs(base) as image:

            def is_folder(path: str) -> bool:
                found = image.find(os.fsencode(path))
                return (found is not None and found.kind == DIR) or any(_is_folder(one / path) for one in layers)

            return _touches(upper, is_folder)
    except (OSError, Unreadable, StoreError):
        return True


def _touches(upper: Path, is_folder: Callable[[str], bool]) -> bool:
    """The same, where IS_FOLDER says what is a folder below the layer UPPER."""
    new: set[str] = set()  # folders that are not there below
    for visit in descriptors.walk(upper, anyones=True):
        if visit.path == OWN_AROUND and OWN_NAME in visit.folders:
            visit.folders.remove(OWN_NAME)
        if visit.path:
            around = visit.path.rpartition("/")[0]
            if around in new or not is_folder(visit.path):
                new.add(visit.path)
            elif _is_opaque(visit.descriptor):
                return True
        if any(LIBRARIES.fullmatch(name) for name in (*visit.folders, *visit.others)):
            return True
        hidden = () if visit.path in new else visit.others
        if any(is_folder(f"{visit.path}/{name}".lstrip("/")) for name in hidden):
            return True
    return False


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_opaque(descriptor: int) -> bool:
    """Whether nothing of the folders below is seen in the folder that DESCRIPTOR holds open."""
    for name in OPAQUE:
        try:
            if os.getxattr(descriptor, name):
                return True
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP):
                raise
    return False


def libraries_script(lines: str) -> str:
    """Of a step's script, LINES: its head and name, and a look at all libraries."""
    head, title, *_ = lines.splitlines()
    return f"{head}\n{title} >/dev/null\nhpcstack_guard_libraries\n"
