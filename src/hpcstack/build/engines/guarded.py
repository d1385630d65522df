"""Find the libraries of the base that a step may have changed, by what its layer holds.

Only these are then compared, inside the image, as they are without the layer and with it
(images/lib.sh, hpcstack_guard_sums). To read all libraries of an image of NVIDIA's takes minutes,
and hardly any step touches one.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from hpcstack.core import descriptors
from hpcstack.core.errors import StoreError
from hpcstack.recipe.guard import LIBRARIES
from hpcstack.squashfs.codec import Unreadable
from hpcstack.squashfs.inode import DIR
from hpcstack.squashfs.read import Squashfs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

CHECK = "hpcstack_guard_check"  # the line of a step that may change no library of the base
STEP = "/hpcstack-step"  # the folder in which a step finds its script and these files:
PLACES = "places"  # what to compare
BEFORE = "before"  # the sums before the step
COMPARE = "compare.sh"  # the script that compares
OWN_AROUND, OWN_NAME = "opt", "hpcstack"  # /opt/hpcstack is no part of the base
CONDA_META = "conda-meta"  # the folder of conda's records
# The attributes by which an overlay hides all that the layers below have in a folder.
OPAQUE = ("user.overlay.opaque", "trusted.overlay.opaque")


def list_touched_places(upper: Path, base: Path, layers: Sequence[Path]) -> list[bytes]:
    """Return where the layer in UPPER may have changed a library of BASE, a squashfs, or LAYERS.

    These are files that have a library's name, and folders of which the layer hides something. If
    it cannot be found out, that is the whole image, `/`.
    """
    try:
        with Squashfs(base) as image:

            def modes_below(path: str) -> list[int]:
                modes = []
                found = image.find(os.fsencode(path))
                if found is not None:
                    modes.append(stat.S_IFDIR if found.kind == DIR else stat.S_IFREG)
                for layer in layers:
                    mode = _mode_of(layer / path)
                    if mode:
                        modes.append(mode)
                return modes

            return [b"/" + os.fsencode(path) for path in _find_touched(upper, modes_below)]
    except (OSError, Unreadable, StoreError):
        return [b"/"]


def has_no_conda(base: Path, layers: Sequence[Path]) -> bool:
    """Return whether neither BASE, a squashfs, nor any of LAYERS has a folder of conda's records.

    It is False, too, where that cannot be found out.
    """
    try:
        with Squashfs(base) as image:
            if image.may_hold(CONDA_META.encode()):
                return False
        return not any(
            CONDA_META in visit.folders
            for layer in layers
            for visit in descriptors.walk_folders(layer, anyones=True)
        )
    except (OSError, Unreadable, StoreError):
        return False


def _find_touched(upper: Path, modes_below: Callable[[str], list[int]]) -> Iterator[str]:
    """Yield the paths of `list_touched_places`, without their `/` at the beginning.

    MODES_BELOW returns of which kinds a path is in the layers below UPPER.
    """
    # Folders that no layer below has. They hide nothing, and what is in them replaces nothing.
    new: set[str] = set()

    for visit in descriptors.walk_folders(upper, anyones=True):
        if visit.path == OWN_AROUND and OWN_NAME in visit.folders:
            visit.folders.remove(OWN_NAME)

        if visit.path:
            around = visit.path.rpartition("/")[0]
            if around in new or stat.S_IFDIR not in modes_below(visit.path):
                new.add(visit.path)
            elif _is_opaque(visit.descriptor):
                yield visit.path
        if visit.path in new:
            continue

        for name in (*visit.folders, *visit.others):
            path = f"{visit.path}/{name}".lstrip("/")
            if LIBRARIES.fullmatch(name):
                if modes_below(path):
                    yield path
            # Something else in the place of a folder: all libraries in that are gone.
            elif name in visit.others and stat.S_IFDIR in modes_below(path):
                yield path


def _mode_of(path: Path) -> int:
    """Return the file type of PATH, as stat.S_IFMT has it; 0 where there is nothing."""
    try:
        return stat.S_IFMT(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _is_opaque(descriptor: int) -> bool:
    """Return whether the open folder DESCRIPTOR hides all that the layers below have in it."""
    for name in OPAQUE:
        try:
            if os.getxattr(descriptor, name):
                return True
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP):
                raise
    return False


def remember_script(lines: str) -> str:
    """Return the script that notes the sums of the libraries at PLACES, before the step of LINES.

    LINES is the step's own script.
    """
    return f"{_head(lines)}hpcstack_guard_sums {STEP}/{PLACES} >{STEP}/{BEFORE}\n"


def compare_script(lines: str) -> str:
    """Return the script that compares the libraries at PLACES after the step of LINES.

    It fails where one of them has changed, or is gone.
    """
    return (
        f'{_head(lines)}cp {STEP}/{BEFORE} "$HPCSTACK_WORK/before"\n'
        f'hpcstack_guard_sums {STEP}/{PLACES} >"$HPCSTACK_WORK/after"\n'
        "hpcstack_lost\n"
    )


def _head(lines: str) -> str:
    """Return the first two lines of a step's script, which source lib.sh and set the title."""
    head, title, *_ = lines.splitlines()
    return f"{head}\n{title} >/dev/null\n"
