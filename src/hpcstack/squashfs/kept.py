"""Copy the part of a base that a spliced file keeps, and hash it at the same time.

Blocks are shared if the filesystem can do that. If not, on a local disk, each piece is read once,
hashed, and written past the page cache (O_DIRECT): in a virtual machine, new pages cost more than
the copying (docs/performance.md). On other filesystems, whose server may be able to copy by itself,
the kernel is asked to copy.

Tested in tests/unit/squashfs/test_splice.py.
"""

from __future__ import annotations

import mmap
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from hpcstack.core.errors import StoreError
from hpcstack.core.mounts import find_filesystem
from hpcstack.core.replacing import written_out
from hpcstack.squashfs.copy import ALIGNED, clone_blocks, copy_bytes, write_all
from hpcstack.squashfs.read import Superblock

if TYPE_CHECKING:
    from hashlib import _Hash
    from pathlib import Path
    from types import TracebackType

HEAD = Superblock.FORMAT.size
PIECE = 8 << 20
ROOMS, WRITERS = 4, 2  # pieces in memory, and threads that write them
LOCAL = ("ext4", "xfs")  # filesystems on which O_DIRECT is used


class Keeping(AbstractContextManager["Keeping"]):
    """Copies the first SIZE bytes of SOURCE to FILE, which is open on OUTPUT, and hashes them.

    Hashing, and writing with O_DIRECT, go on in threads until `finish`; meanwhile what follows
    these bytes in FILE may be written. DIGEST gets all but the HEAD, the superblock, which the
    caller replaces. `how` is `shared`, `direct`, `kernel` or `plain`.
    """

    def __init__(self, source: int, size: int, file: int, output: Path, digest: _Hash) -> None:
        self.source, self.size, self.digest = source, size, digest
        self.stopped = threading.Event()
        self.direct = -1
        self.worker = ThreadPoolExecutor(1)
        # EVEN bytes are shared or written with O_DIRECT, the rest is copied. The border is that of
        # a page, so that no page is written in both ways.
        even = size - size % max(ALIGNED, mmap.PAGESIZE)
        if clone_blocks(source, file, even):
            self.how = "shared"
        elif self._open_direct(output):
            self.how = "direct"
        else:
            even = 0
        self.even = even
        self.done: Future[None] = self.worker.submit(self._sum)
        try:
            with written_out(output):
                how = copy_bytes(source, even, file, even, size - even)
        except BaseException:
            self.close()
            raise
        if not even:
            self.how = how

    def finish(self) -> None:
        """Wait until all bytes are in the file and hashed. Raise what went wrong in the threads."""
        self.done.result()

    def close(self) -> None:
        """Stop the threads."""
        self.stopped.set()
        self.worker.shutdown()
        if self.direct >= 0:
            os.close(self.direct)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _open_direct(self, output: Path) -> bool:
        """Open OUTPUT for writing past the page cache. Return whether that works here."""
        if find_filesystem(output.stat().st_dev) not in LOCAL:
            return False
        try:
            direct = os.open(output, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            os.pwrite(direct, mmap.mmap(-1, mmap.PAGESIZE), 0)
        except OSError:  # as on ext4 with encryption or data=journal
            os.close(direct)
            return False
        self.direct = direct
        return True

    def _sum(self) -> None:
        """Read all pieces, hash them in order, and write them if OUTPUT is open for O_DIRECT.

        A piece's memory is used again once both are done. It comes from mmap, since O_DIRECT needs
        whole pages.
        """
        rooms = [memoryview(mmap.mmap(-1, PIECE)) for _ in range(ROOMS)]
        busy: list[list[Future[None]]] = [[] for _ in rooms]
        direct_bytes = 0
        if self.direct >= 0:
            direct_bytes = self.even
        with ThreadPoolExecutor(1) as summing, ThreadPoolExecutor(WRITERS) as writing:
            for number, at in enumerate(range(0, self.size, PIECE)):
                waiting = busy[number % ROOMS]
                for task in waiting:
                    task.result()
                if self.stopped.is_set():
                    return

                piece = rooms[number % ROOMS][: self.size - at]
                read_all(self.source, piece, at)
                begin = 0 if at else HEAD
                waiting[:] = [summing.submit(self.digest.update, piece[begin:])]
                if direct_bytes > at:
                    part = piece[: direct_bytes - at]
                    waiting.append(writing.submit(write_all, self.direct, part, at))

            for waiting in busy:
                for task in waiting:
                    task.result()


def read_all(source: int, room: memoryview, at: int) -> None:
    """Fill ROOM with what SOURCE has from AT on. Raise StoreError if SOURCE ends too early."""
    while room:
        count = os.preadv(source, [room], at)
        if not count:
            raise StoreError(
                "a base ends before it should: it was changed while it was read", "try again"
            )
        room, at = room[count:], at + count
