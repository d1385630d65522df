"""What a spliced file keeps of its base: copied and summed at once, in the time of the slower of
the two.

Blocks are shared where the filesystem can. On a disk of this machine each piece is read once,
summed, and written past the page cache: new pages cost more than their bytes in a virtual machine
(docs/performance.md). Elsewhere, where the server of a filesystem may do the copy, the kernel is
asked for it.
"""

from __future__ import annotations

import mmap
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from hpcstack.core.errors import StoreError
from hpcstack.core.mounts import filesystem_of
from hpcstack.core.replacing import written_out
from hpcstack.squashfs.copy import ALIGNED, clone_blocks, copy_bytes, write_all
from hpcstack.squashfs.read import Superblock

if TYPE_CHECKING:
    from hashlib import _Hash
    from pathlib import Path
    from types import TracebackType

HEAD = Superblock.FORMAT.size
PIECE = 8 << 20
ROOMS, WRITERS = 4, 2  # pieces in memory, and of those on their way to the disk
LOCAL = ("ext4", "xfs")


class Keeping(AbstractContextManager["Keeping"]):
    """The first SIZE bytes of SOURCE become those of FILE, which is OUTPUT; all but the HEAD go
    into DIGEST.

    `how` they come: `shared`, `direct`, `kernel` or `plain`. What lies behind them may be written
    meanwhile.
    """

    def __init__(self, source: int, size: int, file: int, output: Path, digest: _Hash) -> None:
        self.source, self.size, self.digest = source, size, digest
        self.stopped = threading.Event()
        self.direct = -1
        self.worker = ThreadPoolExecutor(1)
        even = size - size % max(ALIGNED, mmap.PAGESIZE)  # a page is written in one way only
        if clone_blocks(source, file, even):
            self.how = "shared"
        elif self._opens(output):
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
        self.how = self.how if even else how

    def finish(self) -> None:
        """All of it is in the file and in the sum; what kept it from that is raised."""
        self.done.result()

    def close(self) -> None:
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

    def _opens(self, output: Path) -> bool:
        """Whether OUTPUT can be written past the page cache."""
        if filesystem_of(output.stat().st_dev) not in LOCAL:
            return False
        try:
            direct = os.open(output, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            os.pwrite(direct, mmap.mmap(-1, mmap.PAGESIZE), 0)
        except OSError:  # encrypted, or with data=journal, say
            os.close(direct)
            return False
        self.direct = direct
        return True

    def _sum(self) -> None:
        rooms = [memoryview(mmap.mmap(-1, PIECE)) for _ in range(ROOMS)]
        busy: list[list[Future[None]]] = [[] for _ in rooms]
        even = self.even if self.direct >= 0 else 0
        with ThreadPoolExecutor(1) as summing, ThreadPoolExecutor(WRITERS) as writing:
            for number, at in enumerate(range(0, self.size, PIECE)):
                waiting = busy[number % ROOMS]
                for one in waiting:
                    one.result()
                if self.stopped.is_set():
                    return
                piece = rooms[number % ROOMS][: self.size - at]
                read_all(self.source, piece, at)
                waiting[:] = [summing.submit(self.digest.update, piece[0 if at else HEAD :])]
                if even > at:
                    waiting.append(writing.submit(write_all, self.direct, piece[: even - at], at))
            for one in (one for waiting in busy for one in waiting):
                one.result()


def read_all(source: int, room: memoryview, at: int) -> None:
    """ROOM filled with what SOURCE has from AT on. StoreError where that ends before."""
    while room:
        count = os.preadv(source, [room], at)
        if not count:
            raise StoreError(
                "a base ends before it should: it was changed while it was read", "try again"
            )
        room, at = room[count:], at + count
