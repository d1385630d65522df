"""Blobs on local disk while they arrive: fetched in parallel, resumed where they broke off, read while they grow."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from hpcstack.errors import HpcstackError, RegistryError, StoreError
from hpcstack.oci.manifest import Layer

PIECE = 1 << 20
CONNECTIONS = 4
TRIES, BACK_OFF = 5, 0.5
SPARE = 64 << 20  # bytes that stay free on the disk
WINDOW, PAUSE_S = 24 << 20, 0.1
SLOW = 0.1  # the network is the slower side if its reader waits for it for so much of the time
FEW = 16  # less than this part of a blob is not worth to go on with
Pieces = Callable[[Layer, int], Iterator[bytes]]
"""A source: the bytes of a layer from an offset on. RegistryError where it broke off, after which it is asked again."""


class Stopped(Exception):
    """Somebody else failed: this thread has nothing to do any more."""


class Pace:
    """Whether the network is the slower side: what reads the blobs, one after the other, waits for it."""

    def __init__(self) -> None:
        self.began, self.waited = 0.0, 0.0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        began = time.monotonic()
        self.began = self.began or began
        yield
        self.waited += time.monotonic() - began

    def slow(self) -> bool:
        gone = time.monotonic() - self.began if self.began else 0.0
        return gone > 1 and self.waited > gone * SLOW


class Spool:
    """One blob on its way: a thread fetches it, a reader follows.

    What arrives is written to a file, where a later run goes on; up to WINDOW bytes wait for the reader in memory.
    Where the network is slower than the reader, the file takes what memory does not. Where the reader is slower, the
    network waits for it and the file ends there: what comes that fast is fetched again as fast. An earlier run's file,
    and a blob that is read for the second time, are completed and checked on disk before they are read.
    """

    def __init__(self, path: Path, layer: Layer, pace: Pace, before: Sequence[Spool] = (), *, again: bool = False):
        if path.exists() and path.stat().st_size < layer.size // FEW:
            path.unlink()
        self.path, self.layer, self.pace, self.before = path, layer, pace, tuple(before)
        self.left_over = path.exists()
        self.whole = self.left_over or again
        self.on_disk, self.tee = self.whole, True
        self.have, self.read, self.done = 0, 0, False
        self.memory: deque[bytes] = deque()
        self.error: BaseException | None = None
        self.changed, self.stop = threading.Condition(), threading.Event()

    def fill(self, source: Pieces, on_bytes: Callable[[int], None]) -> None:
        """Fetch what is missing. What broke off goes on where it was; a wrong left-over is fetched anew."""
        try:
            right = self._fill(source, on_bytes)
            if not right and self.left_over:
                self.path.unlink()
                right = self._fill(source, on_bytes)
            if not right:
                self.path.unlink()
                raise RegistryError(
                    f"the registry sent other bytes than {self.layer.digest} names",
                    "try again; if it persists, tell its admin",
                )
            self._tell(done=True)
        except BaseException as error:  # the reader raises it
            self._tell(error=error)

    def _fill(self, source: Pieces, on_bytes: Callable[[int], None]) -> bool:
        """Whether the blob is whole and has the digest that names it."""
        found = hashlib.sha256()
        with self.path.open("a+b", buffering=0) as file:
            file.seek(0)
            self.have = 0
            while block := file.read(PIECE):
                found.update(block)
                self.have += len(block)
                on_bytes(len(block))
            tries = 0
            while self.have < self.layer.size:
                before = self.have
                try:
                    for piece in source(self.layer, self.have):
                        found.update(piece)
                        self._take(piece, file)
                        on_bytes(len(piece))
                        if self.have > self.layer.size:
                            return False
                    broken = RegistryError(f"the registry ends {self.layer.digest} after {self.have} of "
                                           f"{self.layer.size} bytes", "try again later")  # fmt: skip
                except RegistryError as error:
                    broken = error
                tries = 1 if self.have > before else tries + 1
                if self.have < self.layer.size:
                    if tries >= TRIES:
                        raise broken
                    if self.stop.wait(BACK_OFF * tries):
                        raise Stopped
        return f"sha256:{found.hexdigest()}" == self.layer.digest

    def _take(self, piece: bytes, file: io.FileIO) -> None:
        """One piece into the file, the memory or both; then wait, where the reader is the slower side."""
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
                        raise StoreError(f"{self.path} has become shorter", "look at that disk, and try again")
                    self.read += len(piece)
                yield piece

    def _await(self) -> None:
        """Until there is something to read, or to tell. To wait for the blob whose turn it is: the network is slow."""
        with self.changed:
            if self._ready():
                return
            turn = all(spool.read >= spool.layer.size for spool in self.before)
            with self.pace.waiting() if turn else contextlib.nullcontext():
                self.changed.wait_for(self._ready)

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
    """All blobs of an image, fetched newest layer first; FOLDER keeps what a later run can use."""

    def __init__(self, folder: Path, layers: tuple[Layer, ...], source: Pieces, on_bytes: Callable[[str, int], None]):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.source, self.on_bytes, self.pace = folder, source, on_bytes, Pace()
        self.pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="fetch")
        self.spools: dict[str, Spool] = {}
        self.begun: set[str] = set()
        for layer in reversed(layers):
            if layer.digest not in self.spools:
                self._start(layer, tuple(self.spools.values()))

    def _start(self, layer: Layer, before: Sequence[Spool], *, again: bool = False) -> None:
        path = self.folder / layer.digest.replace(":", "-")
        spool = self.spools[layer.digest] = Spool(path, layer, self.pace, before, again=again)
        self.pool.submit(spool.fill, self.source, partial(self.on_bytes, layer.digest))

    def pieces(self, layer: Layer) -> Iterator[bytes]:
        if layer.digest in self.begun:
            self.spools[layer.digest].end()
            self._start(layer, (), again=True)
        self.begun.add(layer.digest)
        return self.spools[layer.digest].pieces()

    def close(self) -> None:
        for spool in self.spools.values():
            spool.end()
        self.pool.shutdown(wait=True, cancel_futures=True)


def room(folder: Path, needed: int, what: str) -> None:
    """StoreError unless NEEDED bytes are free below FOLDER."""
    import shutil

    free = shutil.disk_usage(folder).free
    if free < needed + SPARE:
        raise StoreError(
            f"{folder} has {free / 1e9:.1f} GB free, {what} needs about {needed / 1e9:.1f}",
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
def refusals(where: str) -> Iterator[None]:
    """An error of the system on the way to WHERE, as a StoreError."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{where}: {error.strerror or error}", "make room, or look at that disk") from None
    except Stopped:
        raise HpcstackError("stopped") from None
