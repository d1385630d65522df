"""Which libraries of the base's a step may have changed, by what its layer holds: without a look at
any other.

Those are compared inside, as they are without its layer and with it (images/lib.sh,
hpcstack_guard_sums). To read all libraries of an image of NVIDIA's takes minutes, and nearly no
step touches one.
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

CHECK = "hpcstack_guard_check"  # of a step that may change none
STEP = "/hpcstack-step"  # where a step finds its script, and these
PLACES, BEFORE, COMPARE = "places", "before", "compare.sh"
OWN_AROUND, OWN_NAME = "opt", "hpcstack"
CONDA_META = "conda-meta"
OPAQUE = ("user.overlay.opaque", "trusted.overlay.opaque")


def touched_places(upper: Path, base: Path, layers: Sequence[Path]) -> list[bytes]:
    """Where the layer in UPPER may have changed a library that the BASE, a squashfs, or LAYERS
    hold: files that have a library's name, and folders of which something is hidden. All of the
    image where that cannot be told.
    """
    try:
        with Squashfs(base) as image:

            def modes_below(path: str) -> list[int]:
                found = image.find(os.fsencode(path))
                modes = []
                if found is not None:
                    modes.append(stat.S_IFDIR if found.kind == DIR else stat.S_IFREG)
                return modes + [mode for layer in layers if (mode := _mode_of(layer / path))]

            return [b"/" + os.fsencode(path) for path in _find_touched(upper, modes_below)]
    except (OSError, Unreadable, StoreError):
        return [b"/"]


def has_no_conda(base: Path, layers: Sequence[Path]) -> bool:
    """Whether neither the BASE, a squashfs, nor one of LAYERS has a folder of conda's records.

    False for not known.
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
    """The same from the image's root on.

    MODES_BELOW says what kinds of things have a name in what is below UPPER.
    """
    new: set[str] = (
        set()
    )  # folders that are not there below: they hide nothing, and what they hold replaces nothing
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
            elif name in visit.others and stat.S_IFDIR in modes_below(path):
                yield path


def _mode_of(path: Path) -> int:
    """The kind of thing that PATH is; 0 where there is nothing."""
    try:
        return stat.S_IFMT(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return 0


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


def remember_script(lines: str) -> str:
    """Of a step's script, LINES: its head and name, and the sums of the libraries at PLACES."""
    return f"{_head(lines)}hpcstack_guard_sums {STEP}/{PLACES} >{STEP}/{BEFORE}\n"


def compare_script(lines: str) -> str:
    """The same after the step; it fails where one of them is another now, or gone."""
    return (
        f'{_head(lines)}cp {STEP}/{BEFORE} "$HPCSTACK_WORK/before"\n'
        f'hpcstack_guard_sums {STEP}/{PLACES} >"$HPCSTACK_WORK/after"\n'
        "hpcstack_lost\n"
    )


def _head(lines: str) -> str:
    head, title, *_ = lines.splitlines()
    return f"{head}\n{title} >/dev/null\n"
