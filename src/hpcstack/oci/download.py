"""Blobs on local disk while they arrive: fetched in parallel, resumed where they broke off, read
while they grow.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from hpcstack.core.errors import HpcstackError, RegistryError, StoreError
from hpcstack.core.sizes import show_bytes
from hpcstack.oci.manifest import Layer
from hpcstack.oci.rate import TooSlow

if TYPE_CHECKING:
    import io
    from pathlib import Path

PIECE = 1 << 20
CONNECTIONS = 4
TRIES, BACK_OFF = 5, 0.5
SPARE = 64 << 20  # bytes that stay free on the disk
WINDOW, PAUSE_S = 24 << 20, 0.1
STALLED_S, JOIN_S = 600.0, 5.0
SLOW = 0.1  # the network is the slower side if its reader waits for it for so much of the time
LEFT = ".left"  # behind the name of a blob that an earlier run has fetched
FEW = 16  # less than this part of a blob is not worth to go on with
Pieces = Callable[[Layer, int], Iterator[bytes]]
"""A source: the bytes of a layer from an offset on. RegistryError where it broke off, after which it is asked again."""


class Stopped(Exception):
    """Somebody else failed: this thread has nothing to do any more."""


class Pace:
    """Whether the network is the slower side: what reads the blobs, one after the other, waits for
    it.
    """

    def __init__(self) -> None:
        self.began, self.waited, self.since = 0.0, 0.0, 0.0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        self.since = time.monotonic()
        self.began = self.began or self.since
        yield
        self.waited, self.since = self.waited + time.monotonic() - self.since, 0.0

    def slow(self) -> bool:
        now, since = time.monotonic(), self.since
        gone = now - self.began if self.began else 0.0
        return gone > 1 and self.waited + (now - since if since else 0.0) > gone * SLOW


class Spool:
    """One blob on its way: a thread fetches it, a reader follows.

    What arrives is written to a file, where a later run goes on; up to WINDOW bytes wait for the
    reader in memory. Where the network is slower than the reader, the file takes what memory does
    not. Where the reader is slower, the network waits for it and the file ends there: what comes
    that fast is fetched again as fast. An earlier run's file, and a blob that is read for the
    second time, are completed and checked on disk before they are read. The former is copied: who
    wrote it may still be writing.
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
        self.after = after  # the thread of an earlier reader, which writes into the same file
        self.thread: threading.Thread | None = None
        self.path, self.layer, self.pace, self.before = path, layer, pace, tuple(before)
        self.left = path.with_name(path.name + LEFT)
        if self.left.exists() and self.left.stat().st_size < layer.size // FEW:
            self.left.unlink()
        self.left_over = self.left.exists()
        self.whole = self.left_over or again
        self.on_disk, self.tee = self.whole, True
        self.have, self.read, self.done = 0, 0, False
        self.memory: deque[bytes] = deque()
        self.error: BaseException | None = None
        self.changed, self.stop = threading.Condition(), threading.Event()

    def fill(self, source: Pieces, on_bytes: Callable[[int], None]) -> None:
        """Fetch what is missing.

        What broke off goes on where it was; a wrong left-over is fetched anew.
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
                    f"the registry sent other bytes than {self.layer.digest} names",
                    "try again; if it persists, tell its admin",
                )
            self.left.unlink(missing_ok=True)
            self._tell(done=True)
        except BaseException as error:  # the reader raises it
            self._tell(error=error)

    def _fill(self, source: Pieces, on_bytes: Callable[[int], None]) -> bool:
        """Whether the blob is whole and has the digest that names it."""
        found = hashlib.sha256()
        with self.path.open("a+b", buffering=0) as file:
            self.have, left = 0, self.left.exists()
            if left:
                file.truncate(0)
            with (
                self.left.open("rb", buffering=0)
                if left
                else contextlib.nullcontext(file) as before
            ):
                before.seek(0)
                while self.have < self.layer.size and (block := before.read(PIECE)):
                    if self.stop.is_set():
                        raise Stopped
                    found.update(block)
                    if left:
                        _write(file, block)
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
                        (
                            f"the registry ends {self.layer.digest} after {self.have} of "
                            f"{self.layer.size} bytes"
                        ),
                        "try again later",
                    )
                except RegistryError as error:
                    broken = error
                moved = self.have > began and not isinstance(broken, TooSlow)
                tries = 1 if moved else tries + 1
                if self.have < self.layer.size:
                    if tries >= TRIES:
                        raise broken
                    if self.stop.wait(BACK_OFF * tries):
                        raise Stopped
        return f"sha256:{found.hexdigest()}" == self.layer.digest

    def _take(self, piece: bytes, file: io.FileIO) -> None:
        """One piece into the file, the memory or both; then wait, where the reader is the slower
        side.
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
                    self.on_disk = True
                    self.memory.clear()
                    break
                self.tee = self.on_disk
                self.changed.wait(PAUSE_S)
        if self.stop.is_set():
            raise Stopped

    def _tell(self, *, done: bool = False, error: BaseException | None = None) -> None:
        with self.changed:
            self.done, self.error = done, error
            self.changed.notify_all()

    def _ready(self) -> bool:
        return self.done or self.error is not None or (self.have > self.read and not self.whole)

    def pieces(self) -> Iterator[bytes]:
        """The blob from its beginning, as it comes. Ends only when its digest is right."""
        with contextlib.ExitStack() as opened:
            file: io.FileIO | None = None
            while True:
                self._await()
                if self.error:
                    raise self.error
                with self.changed:
                    piece = self.memory.popleft() if self.memory else b""
                    self.read += len(piece)
                    self.changed.notify_all()
                if not piece:
                    if self.read >= self.have:
                        return
                    file = file or opened.enter_context(self.path.open("rb", buffering=0))
                    file.seek(self.read)
                    piece = file.read(min(PIECE, self.have - self.read))
                    if not piece:
                        raise StoreError(
                            f"{self.path} has become shorter", "look at that disk, and try again"
                        )
                    self.read += len(piece)
                yield piece

    def _await(self) -> None:
        """Until there is something to read, or to tell.

        To wait for the blob whose turn it is: the network is slow.
        """
        with self.changed:
            if self._ready():
                return
            turn = all(spool.read >= spool.layer.size for spool in self.before)
            with self.pace.waiting() if turn else contextlib.nullcontext():
                have = self.have
                while not self.changed.wait_for(self._ready, STALLED_S):
                    if self.have == have:
                        raise RegistryError(
                            (
                                f"nothing of {self.layer.digest} has come for {STALLED_S / 60:.0f} "
                                f"minutes"
                            ),
                            "try again later",
                        )
                    have = self.have

    def end(self) -> None:
        self.stop.set()
        with self.changed:
            self.changed.notify_all()


def _write(file: io.FileIO, piece: bytes) -> None:
    """All of PIECE: the last write before a disk is full takes a part of it."""
    rest = memoryview(piece)
    while rest:
        rest = rest[file.write(rest) :]


class Spools:
    """All blobs of an image, fetched in the order in which they are read; FOLDER keeps what a later
    run can use.

    Each has a thread of its own: one that waits for its reader must hold up none that is being
    read.
    """

    def __init__(
        self,
        folder: Path,
        layers: Iterable[Layer],
        source: Pieces,
        on_bytes: Callable[[str, int], None],
    ):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.source, self.on_bytes, self.pace = folder, source, on_bytes, Pace()
        self.lock, self.threads, self.begun = threading.Lock(), list[threading.Thread](), set[str]()
        self.spools: dict[str, Spool] = {}
        for layer in layers:
            if layer.digest not in self.spools:
                self.spools[layer.digest] = self._spool(layer, tuple(self.spools.values()))
        self.waiting = deque(self.spools.values())
        for _ in range(CONNECTIONS):
            self._next()

    def _spool(
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

    def _next(self) -> None:
        """Begin with the next blob that nobody fetches yet."""
        with self.lock:
            if self.waiting:
                self._start(self.waiting.popleft())

    def _start(self, spool: Spool) -> None:
        def work() -> None:
            if spool.after:
                spool.after.join()
            spool.fill(self.source, partial(self.on_bytes, spool.layer.digest))
            if not spool.stop.is_set():
                self._next()

        spool.thread = thread = threading.Thread(target=work, name="fetch", daemon=True)
        self.threads.append(thread)
        thread.start()

    def pieces(self, layer: Layer) -> Iterator[bytes]:
        """What is in LAYER. Who asks again gets it from disk: memory has let it go."""
        with self.lock:
            spool = self.spools[layer.digest]
            if layer.digest in self.begun:
                spool.end()
                spool = self.spools[layer.digest] = self._spool(
                    layer, (), again=True, after=spool.thread
                )
                self._start(spool)
            elif spool in self.waiting:
                self.waiting.remove(spool)
                self._start(spool)
            self.begun.add(layer.digest)
        return spool.pieces()

    def close(self) -> None:
        with self.lock:
            self.waiting.clear()
            for spool in self.spools.values():
                spool.end()
        until = time.monotonic() + JOIN_S
        for thread in self.threads:  # one that a registry gives a byte now and then does not end
            thread.join(max(0.0, until - time.monotonic()))


def check_free_space(folder: Path, needed: int, what: str) -> None:
    """StoreError unless NEEDED bytes are free below FOLDER."""
    import shutil

    free = shutil.disk_usage(folder).free
    if free < needed + SPARE:
        raise StoreError(
            f"{folder} has {show_bytes(free)} free, {what} needs about {show_bytes(needed)}",
            "make room, or name another folder: build.cachedir or build.tmpdir in site.yaml",
        )


def file_pieces(path: Path, start: int = 0, length: int | None = None) -> Iterator[bytes]:
    """A file, or LENGTH bytes of it from START on."""
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        left = os.fstat(file.fileno()).st_size - start if length is None else length
        while left > 0 and (block := file.read(min(PIECE, left))):
            left -= len(block)
            yield block


@contextlib.contextmanager
def explain_system_errors(where: str) -> Iterator[None]:
    """An error of the system on the way to WHERE, as a StoreError."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{where}: {error.strerror or error}", "make room, or look at that disk"
        ) from None
    except Stopped:
        raise HpcstackError("stopped") from None
