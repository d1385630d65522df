"""Hand on what an interrupted import has fetched to the next one.

Each run has a folder of its own. An earlier run may only have been suspended, and have lost its
lease meanwhile: it may still write. So what it wrote is copied and checked, and never continued in
place (`oci/download.py`). In a site's group, users take over only what they fetched themselves: the
folders of others are closed to them.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from typing import TYPE_CHECKING

from hpcstack.core import descriptors
from hpcstack.core.lease import make_label
from hpcstack.oci.download import LEFT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOBS = "blobs"


@contextlib.contextmanager
def taking_over(work: Path) -> Iterator[Path]:
    """Make a new folder beside WORK, and named after it, and yield it as a pinned path.

    The caller must hold the lease of WORK. What earlier runs have fetched lies in the folder's
    `blobs`, each as NAME.left. The folder is removed if the block ends well; otherwise it stays for
    the next run.
    """
    mine = work.with_name(f"{work.name}.{make_label()}{uuid.uuid4().hex[:8]}")
    descriptors.make_folder(work.parent)
    descriptors.make_new_folder(mine)
    with descriptors.pin_path(mine) as own:
        descriptors.make_new_folder(own / BLOBS)
        earlier = [
            name
            for name in descriptors.list_names_in(work.parent)
            if f"{name}.".startswith(f"{work.name}.")
        ]
        for name in earlier:
            old = work.with_name(name)
            if old != mine and _is_ours(old):
                _take_blobs(old / BLOBS, own / BLOBS)
                descriptors.remove_tree(old)
        yield own
    descriptors.remove_tree(mine)


def _is_ours(folder: Path) -> bool:
    """Return whether FOLDER is a folder of this user."""
    try:
        if not descriptors.is_folder(folder):
            return False
        return descriptors.stat_path(folder).st_uid == os.geteuid()
    except OSError:
        return False


def _take_blobs(source: Path, target: Path) -> None:
    """Move the blobs in SOURCE to TARGET, as NAME.left; of two with the same name, the larger."""
    for name in descriptors.list_names_in(source):
        blob = source / name
        taken = target / f"{name.removesuffix(LEFT)}{LEFT}"
        with contextlib.suppress(OSError):
            larger = (
                not descriptors.exists_at(taken)
                or descriptors.stat_path(blob).st_size > taken.lstat().st_size
            )
            if larger:
                descriptors.rename_path(blob, taken)
