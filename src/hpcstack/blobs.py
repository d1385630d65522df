"""Blobs on local disk while they arrive: fetched in parallel, resumed where they broke off, read while they grow."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from hpcstack.errors import HpcstackError, RegistryError, StoreError
from hpcstack.oci.manifest import Layer

PIECE = 1 << 20
CONNECTIONS = 4
TRIES, BACK_OFF = 5, 0.5
SPARE = 64 << 20  # bytes that stay free on the disk
Pieces = Callable[[Layer, int], Iterator[bytes]]
"""A source: the bytes of a layer from an offset on. RegistryError where it broke off, after which it is asked again."""


class Stopped(Exception):
    """Somebody else failed: this thread has nothing to do any more."""


class Spool:
    """One blob: a file that one thread fills and others follow. An earlier run's is completed before it is read."""

    def __init__(self, path: Path, layer: Layer) -> None:
        self.path, self.layer = path, layer
        self.have, self.done, self.left_over = 0, False, path.exists()
        self.error: BaseException | None = None
        self.changed = threading.Condition()

    def fill(self, source: Pieces, stop: threading.Event, on_bytes: Callable[[int], None]) -> None:
        """Fetch what is missing. What broke off goes on where it was; a wrong left-over is fetched anew."""
        try:
            right = self._fill(source, stop, on_bytes)
            if not right and self.left_over:
                self.path.unlink()
                right = self._fill(source, stop, on_bytes)
            if not right:
                self.path.unlink()
                raise RegistryError(
                    f"the registry sent other bytes than {self.layer.digest} names",
                    "try again; if it persists, tell its admin",
                )
            self._tell(done=True)
        except BaseException as error:  # the reader raises it
            self._tell(error=error)

    def _fill(self, source: Pieces, stop: threading.Event, on_bytes: Callable[[int], None]) -> bool:
        """Whether the blob is whole and has the digest that names it."""
        found = hashlib.sha256()
        with self.path.open("a+b", buffering=0) as file:
            file.seek(0)
            self.have = 0
            while block := file.read(PIECE):
                found.update(block)
                self._grow(len(block), on_bytes)
            tries = 0
            while self.have < self.layer.size:
                before = self.have
                try:
                    for piece in source(self.layer, self.have):
                        if stop.is_set():
                            raise Stopped
                        found.update(piece)
                        file.write(piece)
                        self._grow(len(piece), on_bytes)
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
                    time.sleep(BACK_OFF * tries)
        return f"sha256:{found.hexdigest()}" == self.layer.digest

    def _grow(self, count: int, on_bytes: Callable[[int], None]) -> None:
        with self.changed:
            self.have += count
            self.changed.notify_all()
        on_bytes(count)

    def _tell(self, *, done: bool = False, error: BaseException | None = None) -> None:
        with self.changed:
            self.done, self.error = done, error
            self.changed.notify_all()

    def _ready(self, at: int) -> bool:
        return self.done or self.error is not None or (self.have > at and not self.left_over)

    def pieces(self) -> Iterator[bytes]:
        """The blob from its beginning, as it grows. Ends only when its digest is right."""
        at = 0
        with self.changed:
            self.changed.wait_for(lambda: self._ready(0))
        if self.error:
            raise self.error
        with self.path.open("rb", buffering=0) as file:
            while True:
                with self.changed:
                    self.changed.wait_for(lambda at=at: self._ready(at))  # type: ignore[misc]
                    have = self.have
                if self.error:
                    raise self.error
                if at >= have:
                    return
                block = file.read(min(PIECE, have - at))
                at += len(block)
                yield block


class Spools:
    """All blobs of an image, fetched newest layer first into FOLDER."""

    def __init__(self, folder: Path, layers: tuple[Layer, ...], source: Pieces, on_bytes: Callable[[str, int], None]):
        folder.mkdir(parents=True, exist_ok=True)
        self.stop = threading.Event()
        self.spools = {layer.digest: Spool(folder / layer.digest.replace(":", "-"), layer) for layer in layers}
        self.pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="fetch")
        for digest, spool in reversed(self.spools.items()):
            self.pool.submit(spool.fill, source, self.stop, partial(on_bytes, digest))

    def pieces(self, layer: Layer) -> Iterator[bytes]:
        return self.spools[layer.digest].pieces()

    def close(self) -> None:
        self.stop.set()
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
