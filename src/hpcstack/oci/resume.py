"""What a run that was killed has fetched, for the next one.

Each run has a folder of its own: one that was only stopped for long, and has lost its lease
meanwhile, may still write. What it wrote is copied and checked, never gone on with in place. Of a
site's group each member takes over only what is his own: what another fetched lies in a folder that
is closed to all but him.
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
    """A new folder beside WORK and named after it, pinned; in its `blobs`, each as NAME.left, what
    earlier runs have fetched. To be called by who holds the lease of WORK. It goes if the block
    ends well; else the next run takes it over.
    """
    mine = work.with_name(f"{work.name}.{make_label()}{uuid.uuid4().hex[:8]}")
    descriptors.make_folder(work.parent)
    descriptors.make_new_folder(mine)
    with descriptors.pin_path(mine) as own:
        descriptors.make_new_folder(own / BLOBS)
        earlier = [
            name
            for name in descriptors.names_in(work.parent)
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
    try:
        return (
            descriptors.is_folder(folder) and descriptors.stat_path(folder).st_uid == os.geteuid()
        )
    except OSError:
        return False


def _take_blobs(source: Path, target: Path) -> None:
    for name in descriptors.names_in(source):
        blob, taken = source / name, target / f"{name.removesuffix(LEFT)}{LEFT}"
        with contextlib.suppress(OSError):
            larger = (
                not descriptors.path_exists(taken)
                or descriptors.stat_path(blob).st_size > taken.lstat().st_size
            )
            if larger:
                descriptors.rename_path(blob, taken)
