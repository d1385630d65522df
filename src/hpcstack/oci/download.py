"""Fetch blobs in parallel, resume them where they broke off, and read them while they arrive."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from hpcstack.core.errors import HpcstackError, RegistryError, StoreError
from hpcstack.core.files import is_for_want_of_room
from hpcstack.core.sizes import show_bytes
from hpcstack.oci.manifest import Layer
from hpcstack.oci.rate import TooSlow

if TYPE_CHECKING:
    from pathlib import Path

PIECE = 1 << 20
CONNECTIONS = 4  # blobs that are fetched at the same time
TRIES, BACK_OFF = 5, 0.5  # attempts that bring nothing new, and seconds of pause per attempt
SPARE = 64 << 20  # bytes that stay free on the disk
WINDOW = 24 << 20  # bytes of a blob that may wait for the reader in memory
PAUSE_S = 0.1
STALLED_S = 600.0  # without a byte for this long, a reader gives up
JOIN_S = 5.0
SLOW = 0.1  # the network counts as slow if the reader waits for it for this fraction of the time
LEFT = ".left"  # appended to the name of a blob that an earlier run has fetched
FEW = 16  # a left-over of less than 1/16 of a blob is not worth resuming
# Yields the bytes of a layer from an offset on. Raises RegistryError if the connection breaks off;
# it is then called again, with a new offset.
Pieces = Callable[[Layer, int], Iterator[bytes]]


class Stopped(Exception):
    """The import has ended or failed elsewhere, so this thread has nothing left to do."""


class Pace:
    """Measures whether the network is slower than what reads the blobs, one after the other."""

    def __init__(self) -> None:
        self.began, self.waited, self.since = 0.0, 0.0, 0.0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time that the block takes as waiting for the network."""
        self.since = time.monotonic()
        self.began = self.began or self.since
        yield
        self.waited += time.monotonic() - self.since
        self.since = 0.0

    def slow(self) -> bool:
        """Return whether the reader has spent more than the fraction SLOW of its time waiting."""
        now = time.monotonic()
        since = self.since
        if not self.began:
            return False
        gone = now - self.began
        waited = self.waited
        if since:  # it is waiting at this moment
            waited += now - since
        return gone > 1 and waited > gone * SLOW


class Spool:
    """One blob on its way: a thread fetches it, and a reader follows.

    What arrives is written to a file, from which a later run can resume. Up to WINDOW bytes wait
    for the reader in memory. If the network is slower than the reader, the file also takes what
    does not fit there. If the reader is slower, fetching waits for it, and the file is not
    continued: what comes that fast can be fetched again as fast.

    A blob that an earlier run has left, and one that is read for the second time, are completed and
    checked on disk before they are read. What an earlier run has left is copied first, since that
    run may still be writing to it.
    """

    def __init__(
        self,
        path: Path,
        layer: Layer,
        pace: Pace,
        before: Sequence[Spool] = (),
        *,
        again: bool = False,
        after: threading.Thread | None = None,
    ) -> None:
        self.path, self.layer, self.pace = path, layer, pace
        self.before = tuple(before)  # the blobs that are read before this one
        self.after = after  # the thread of an earlier reader, which writes into the same file
        self.thread: threading.Thread | None = None

        self.left = path.with_name(path.name + LEFT)
        if self.left.exists() and self.left.stat().st_size < layer.size // FEW:
            self.left.unlink()
        self.left_over = self.left.exists()

        self.whole = self.left_over or again  # nothing may be read before it is complete
        self.on_disk = self.whole  # memory no longer takes what arrives; it is read from the file
        self.tee = True  # what arrives is written to the file
        self.have = 0  # bytes that have arrived
        self.read = 0  # bytes that the reader has taken
        self.done = False
        self.memory: deque[bytes] = deque()
        self.stored: io.FileIO | None = None  # the file, for the reader
        self.error: BaseException | None = None
        self.changed = threading.Condition()
        self.stop = threading.Event()

    def fill(self, source: Pieces, on_bytes: Callable[[int], None]) -> None:
        """Fetch the blob from SOURCE, and resume it if it breaks off.

        A left-over with wrong bytes is dropped, and the blob fetched anew. Errors are not raised
        here, but in the reader.
        """
        try:
            right = self._fill(source, on_bytes)
            if not right and self.left_over:
                self.path.unlink()
                self.left.unlink(missing_ok=True)
                right = self._fill(source, on_bytes)
            if not right:
                self.path.unlink()
                raise RegistryError(
                    f"the registry sent bytes that do not match {self.layer.digest}",
                    "try again; if it persists, tell the registry's admin",
                )
            self.left.unlink(missing_ok=True)
            self._report(done=True)
        except BaseException as error:  # raised again in the reader's thread, by `pieces`
            self._report(error=error)

    def _fill(self, source: Pieces, on_bytes: Callable[[int], None]) -> bool:
        """Complete the file from what is there and from SOURCE. Return whether its digest is right.

        Raise RegistryError after TRIES attempts that brought nothing, and Stopped after `end`.
        """
        found = hashlib.sha256()
        with self.path.open("a+b", buffering=0) as file:
            self._keep_for_reader(file)
            self.have = 0
            for block in self._read_disk(file):
                found.update(block)
                self.have += len(block)
                on_bytes(len(block))

            tries = 0
            while self.have < self.layer.size:
                began = self.have
                try:
                    for piece in source(self.layer, self.have):
                        found.update(piece)
                        self._take(piece, file)
                        on_bytes(len(piece))
                        if self.have > self.layer.size:
                            return False
                    broken = RegistryError(
                        f"the registry ended {self.layer.digest} after {self.have} of "
                        f"{self.layer.size} bytes",
                        "try again later",
                    )
                except RegistryError as error:
                    broken = error

                # Only attempts without progress count: a large blob may break off many times.
                if self.have > began and not isinstance(broken, TooSlow):
                    tries = 1
                else:
                    tries += 1
                if self.have < self.layer.size:
                    if tries >= TRIES:
                        raise broken
                    if self.stop.wait(BACK_OFF * tries):
                        raise Stopped
        return f"sha256:{found.hexdigest()}" == self.layer.digest

    def _keep_for_reader(self, file: io.FileIO) -> None:
        """Let the reader read FILE itself: under its path there might be another one by then."""
        with self.changed:
            if self.stored:
                self.stored.close()
            self.stored = io.FileIO(os.dup(file.fileno()))

    def _read_disk(self, file: io.FileIO) -> Iterator[bytes]:
        """Yield what an earlier run has left, and copy it to FILE; else yield what FILE holds."""
        if not self.left.exists():
            file.seek(0)
            yield from self._read_blob(file)
            return
        file.truncate(0)
        with self.left.open("rb", buffering=0) as left:
            for block in self._read_blob(left):
                _write(file, block)
                yield block

    def _read_blob(self, file: io.FileIO) -> Iterator[bytes]:
        """Yield FILE until its end, or until the size of the blob is reached."""
        taken = 0
        while taken < self.layer.size and (block := file.read(PIECE)):
            if self.stop.is_set():
                raise Stopped
            taken += len(block)
            yield block

    def _take(self, piece: bytes, file: io.FileIO) -> None:
        """Store one PIECE in FILE, in memory, or in both; then wait if the reader is far behind.

        Raise Stopped after `end`.
        """
        if self.tee:
            _write(file, piece)
        with self.changed:
            if not self.on_disk:
                self.memory.append(piece)
            self.have += len(piece)
            self.changed.notify_all()
            while not self.stop.is_set() and not self.whole and self.have - self.read >= WINDOW:
                if self.tee and self.pace.slow():
                    # The network is slower on the whole, so never stop fetching: what memory holds
                    # is in the file as well, and is read from there.
                    self.on_disk = True
                    self.memory.clear()
                    break
                # The reader is slower. The file must have no gaps, so once a piece was not written
                # to it, nothing more is.
                self.tee = self.on_disk
                self.changed.wait(PAUSE_S)
        if self.stop.is_set():
            raise Stopped

    def _report(self, *, done: bool = False, error: BaseException | None = None) -> None:
        """Tell the reader that the blob is complete, or that fetching has failed."""
        with self.changed:
            self.done, self.error = done, error
            self.changed.notify_all()

    def _is_ready(self) -> bool:
        """Return whether the reader need not wait: for bytes, the end or an error."""
        return self.done or self.error is not None or (self.have > self.read and not self.whole)

    def pieces(self) -> Iterator[bytes]:
        """Yield the blob from its beginning as it arrives. It ends only if its digest is right.

        Raise the error of the thread that fetches; RegistryError if nothing arrives for STALLED_S
        seconds.
        """
        try:
            while True:
                self._wait_until_ready()
                if self.error:
                    raise self.error

                with self.changed:
                    piece = self.memory.popleft() if self.memory else b""
                    self.read += len(piece)
                    self.changed.notify_all()
                if piece:
                    yield piece
                    continue

                if self.read >= self.have:
                    return
                assert self.stored, "bytes have arrived, so there is a file"
                # The writer has the same place in the file, so that place must not move.
                piece = os.pread(self.stored.fileno(), min(PIECE, self.have - self.read), self.read)
                if not piece:
                    raise StoreError(
                        f"{self.path} has become shorter while it was read",
                        "check that disk, and try again",
                    )
                self.read += len(piece)
                yield piece
        finally:
            if self.stored:
                self.stored.close()

    def _wait_until_ready(self) -> None:
        """Wait until there is something to read, or an end or error to report.

        The wait counts as the network's only for the blob whose turn it is: another one may be
        waiting for a connection. Raise RegistryError if nothing arrives for STALLED_S seconds.
        """
        with self.changed:
            if self._is_ready():
                return
            turn = all(spool.read >= spool.layer.size for spool in self.before)
            with self.pace.waiting() if turn else contextlib.nullcontext():
                have = self.have
                while not self.changed.wait_for(self._is_ready, STALLED_S):
                    if self.have == have:
                        minutes = STALLED_S / 60
                        raise RegistryError(
                            f"nothing of {self.layer.digest} has arrived for {minutes:.0f} minutes",
                            "try again later",
                        )
                    have = self.have

    def end(self) -> None:
        """Stop fetching, and wake a thread that waits for the reader."""
        self.stop.set()
        with self.changed:
            self.changed.notify_all()


def _write(file: io.FileIO, piece: bytes) -> None:
    """Write all of PIECE. One write may take only a part, as the last one before a disk is full."""
    rest = memoryview(piece)
    while rest:
        rest = rest[file.write(rest) :]


class Spools:
    """All blobs of an image, fetched into FOLDER in the order in which they are read.

    FOLDER also keeps what a later run can resume. Each blob has a thread of its own, so that one
    that waits for its reader never holds up the one that is being read.
    """

    def __init__(
        self,
        folder: Path,
        layers: Iterable[Layer],
        source: Pieces,
        on_bytes: Callable[[str, int], None],
    ):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.source, self.on_bytes = folder, source, on_bytes
        self.pace = Pace()
        self.lock = threading.Lock()
        self.threads: list[threading.Thread] = []
        self.begun: set[str] = set()  # digests of the blobs that a reader has asked for

        self.spools: dict[str, Spool] = {}
        for layer in layers:
            if layer.digest not in self.spools:  # an image may have the same layer twice
                self.spools[layer.digest] = self._make_spool(layer, tuple(self.spools.values()))
        self.waiting = deque(self.spools.values())
        for _ in range(CONNECTIONS):
            self._start_next()

    def _make_spool(
        self,
        layer: Layer,
        before: Sequence[Spool],
        *,
        again: bool = False,
        after: threading.Thread | None = None,
    ) -> Spool:
        return Spool(
            self.folder / layer.digest.replace(":", "-"),
            layer,
            self.pace,
            before,
            again=again,
            after=after,
        )

    def _start_next(self) -> None:
        """Start to fetch the next blob that no thread fetches yet."""
        with self.lock:
            if self.waiting:
                self._start(self.waiting.popleft())

    def _start(self, spool: Spool) -> None:
        """Start the thread of SPOOL, which goes on with the next blob when it is done."""

        def work() -> None:
            if spool.after:
                spool.after.join()
            spool.fill(self.source, partial(self.on_bytes, spool.layer.digest))
            if not spool.stop.is_set():
                self._start_next()

        thread = threading.Thread(target=work, name="fetch", daemon=True)
        spool.thread = thread
        self.threads.append(thread)
        thread.start()

    def pieces(self, layer: Layer) -> Iterator[bytes]:
        """Yield the bytes of LAYER as it is stored.

        Asked for again, it is read from disk, and completed there first: memory no longer has it.
        """
        with self.lock:
            spool = self.spools[layer.digest]
            if layer.digest in self.begun:
                spool.end()
                spool = self._make_spool(layer, (), again=True, after=spool.thread)
                self.spools[layer.digest] = spool
                self._start(spool)
            elif spool in self.waiting:  # a reader needs it now, whatever is being fetched
                self.waiting.remove(spool)
                self._start(spool)
            self.begun.add(layer.digest)
        return spool.pieces()

    def close(self) -> None:
        """Stop all threads, and wait for them, at most JOIN_S seconds in all."""
        with self.lock:
            self.waiting.clear()
            for spool in self.spools.values():
                spool.end()

        # A thread whose registry sends a byte now and then does not end; it is left behind.
        until = time.monotonic() + JOIN_S
        for thread in self.threads:
            thread.join(max(0.0, until - time.monotonic()))


def check_free_space(folder: Path, needed: int, what: str) -> None:
    """Raise StoreError unless FOLDER's disk has NEEDED bytes free, and SPARE more, for WHAT."""
    import shutil

    free = shutil.disk_usage(folder).free
    if free < needed + SPARE:
        raise StoreError(
            f"{folder} has {show_bytes(free)} free, {what} needs about {show_bytes(needed)}",
            "make room, or name another folder: build.cachedir or build.tmpdir in site.yaml",
            page="free-disk-space",
        )


def read_pieces(path: Path, start: int = 0, length: int | None = None) -> Iterator[bytes]:
    """Yield the file PATH in pieces: LENGTH bytes from START on, or all that follows START."""
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        left = length
        if left is None:
            left = os.fstat(file.fileno()).st_size - start
        while left > 0 and (block := file.read(min(PIECE, left))):
            left -= len(block)
            yield block


@contextlib.contextmanager
def explain_system_errors(where: str) -> Iterator[None]:
    """Turn an OSError in the block into a StoreError about the path WHERE."""
    try:
        yield
    except OSError as error:
        page = "free-disk-space" if is_for_want_of_room(error) else ""
        raise StoreError(
            f"{where}: {error.strerror or error}", "make room, or check that disk", page=page
        ) from None
    except Stopped:
        raise HpcstackError("stopped") from None
