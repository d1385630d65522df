"""What a run that was killed has fetched, for the next one.

Each run has a folder of its own: one that was only stopped for long, and has lost its lease meanwhile, may still write.
What it wrote is copied and checked, never gone on with in place.
"""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING

from hpcstack.core import sharing
from hpcstack.core.files import remove_tree
from hpcstack.core.lease import label
from hpcstack.oci.download import LEFT

if TYPE_CHECKING:
    from pathlib import Path

BLOBS = "blobs"


def take_over(work: Path) -> Path:
    """A new folder beside WORK and named after it; in its `blobs`, each as NAME.left, what earlier runs have fetched.
    To be called by who holds the lease of WORK."""
    mine = work.with_name(f"{work.name}.{label()}{uuid.uuid4().hex[:8]}")
    work.parent.mkdir(parents=True, exist_ok=True)
    for folder in (mine, mine / BLOBS):
        folder.mkdir()
        sharing.make_folder(folder)  # what one of a group leaves, another takes over
    for old in (work, *work.parent.glob(f"{work.name}.*")):
        if old == mine or not old.is_dir():
            continue
        for blob in (old / BLOBS).glob("*"):
            target = mine / BLOBS / f"{blob.name.removesuffix(LEFT)}{LEFT}"
            with contextlib.suppress(OSError):
                if not target.exists() or blob.stat().st_size > target.stat().st_size:
                    blob.rename(target)
        remove_tree(old)
    return mine
