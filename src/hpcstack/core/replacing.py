"""A file that takes long to make, there only when it is whole."""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from typing import TYPE_CHECKING

from hpcstack.core import descriptors
from hpcstack.core.files import put_in_place
from hpcstack.core.lease import make_label, remove_leftovers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SYNC_S = 0.2


@contextlib.contextmanager
def replace_file(path: Path, *, shared: bool = True) -> Iterator[Path]:
    """A name to write to, in a folder of our own beside PATH. It becomes PATH, also after a power
    failure, if the block ends well; else it is gone, and PATH is as it was. SHARED: a site's group
    may write it, too. What processes that were killed have left there is removed first.
    """
    remove_leftovers(path.parent, f".{path.name}.", descriptors.remove_tree)
    folder = path.with_name(f".{path.name}.{make_label()}{uuid.uuid4().hex[:8]}")
    descriptors.make_new_folder(folder)
    try:
        with descriptors.pin_path(folder) as own:
            part = own / path.name
            yield part
            put_in_place(part, path, shared=shared)
    finally:
        descriptors.remove_tree(folder)


@contextlib.contextmanager
def written_out(part: Path) -> Iterator[None]:
    """PART on disk at the end. It is written out while it grows: the kernel would leave gigabytes
    for the end.

    What is on disk is let go of, so that the next blocks take the same memory again: in a virtual
    machine, or a job with a limit, each new page costs more than the copy into it.
    """
    ended = threading.Event()

    def sync() -> None:
        with contextlib.suppress(OSError):
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
