"""Whether a step may have changed a library of the base's, by what its layer holds: without a walk through the image.

What may have is looked at inside, all of it (images/lib.sh, hpcstack_guard_libraries): a walk through a mounted image
of NVIDIA's takes seconds, and nearly no step touches one.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.recipe.guard import LIBRARIES
from hpcstack.squashfs.codec import Unreadable
from hpcstack.squashfs.inode import DIR
from hpcstack.squashfs.read import Squashfs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CHECK = "hpcstack_guard_check"  # of a step that may change none
OWN = "opt/hpcstack"
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

            return _touches(upper, "", is_folder, new=False)
    except (OSError, Unreadable):
        return True


def _touches(folder: Path, path: str, is_folder: Callable[[str], bool], *, new: bool) -> bool:
    """The same of FOLDER, which is PATH in the image; NEW: there is no such folder below."""
    with os.scandir(folder) as entries:
        for entry in entries:
            name = f"{path}/{entry.name}".lstrip("/")
            if name == OWN:
                continue
            if LIBRARIES.fullmatch(entry.name):
                return True
            real = entry.is_dir(follow_symlinks=False)
            below = not new and is_folder(name)
            if below and (not real or _is_opaque(Path(entry.path))):
                return True
            if real and _touches(Path(entry.path), name, is_folder, new=not below):
                return True
    return False


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_opaque(folder: Path) -> bool:
    """Whether nothing of the folders below is seen in FOLDER."""
    for name in OPAQUE:
        try:
            if os.getxattr(folder, name):
                return True
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP):
                raise
    return False


def libraries_script(lines: str) -> str:
    """Of a step's script, LINES: its head and name, and a look at all libraries."""
    head, title, *_ = lines.splitlines()
    return f"{head}\n{title} >/dev/null\nhpcstack_guard_libraries\n"
