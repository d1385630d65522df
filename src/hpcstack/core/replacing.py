"""Files that take long to make, and appear under their name only when they are whole.

Tested in tests/unit/oci/test_download.py.
"""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from typing import TYPE_CHECKING

from hpcstack.core import descriptors
from hpcstack.core.files import put_in_place
from hpcstack.core.lease import make_label, remove_leftovers
from hpcstack.core.sharing import ALONE, Sharing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SYNC_S = 0.2  # between two times that a growing file is written out


@contextlib.contextmanager
def replace_file(path: Path, sharing: Sharing = ALONE) -> Iterator[Path]:
    """Yield a path to write to, which becomes PATH if the block ends well.

    The path lies in a folder of our own beside PATH. If the block raises, it is removed and PATH
    stays as it was. What becomes PATH survives a power failure. The group of SHARING may write
    it, too. Leftovers of processes that were killed here are removed first.
    """
    remove_leftovers(path.parent, f".{path.name}.", descriptors.remove_tree)
    folder = path.with_name(f".{path.name}.{make_label()}{uuid.uuid4().hex[:8]}")
    descriptors.make_new_folder(folder)
    try:
        with descriptors.pin_path(folder) as own:
            part = own / path.name
            yield part
            put_in_place(part, path, sharing)
    finally:
        descriptors.remove_tree(folder)


@contextlib.contextmanager
def written_out(part: Path) -> Iterator[None]:
    """Write PART out to the disk while it grows, and wait for the rest when the block ends.

    The kernel alone would leave gigabytes for the end. Pages that are on the disk are given back,
    so that the next blocks use the same memory again: in a virtual machine, or in a job with a
    memory limit, a new page costs more than the copy into it.
    """
    ended = threading.Event()

    def sync() -> None:
        with contextlib.suppress(OSError):  # PART may not be there yet
            descriptor = os.open(part, os.O_RDONLY)
            try:
                os.fdatasync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)

    def work() -> None:
        while not ended.wait(SYNC_S):
            sync()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    descriptor = os.open(part, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
