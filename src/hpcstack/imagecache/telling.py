"""Report how far an import is, to its own client and to those who wait for it.

Tested in tests/unit/imagecache/test_provide.py.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING

from hpcstack.core import files
from hpcstack.core.errors import InputError
from hpcstack.core.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hpcstack.imagecache.layout import ImageCache

TELL_S = 2.0  # seconds between two reports
MAX_TOLD = 4096  # bytes of the file that holds one


class ImportTold(Progress):
    """Progress of an import of TOTAL bytes: told to PROGRESS, and in FILE to those who wait."""

    def __init__(self, progress: Progress, file: Path, total: int) -> None:
        self.progress, self.file, self.total = progress, file, total
        self.done: dict[str, int] = {}
        self.last = 0.0

    def __call__(self, sentence: str) -> None:
        self.progress(sentence)

    def event(self, kind: str, **facts: object) -> None:
        self.progress.event(kind, **facts)

    def amount(self, what: str, done: int, total: int) -> None:
        """Note that DONE bytes of the layer WHAT have come; report the sum now and then."""
        del total
        self.done[what] = done
        if time.monotonic() - self.last < TELL_S:
            return
        self.last = time.monotonic()
        have = sum(list(self.done.values()))  # a list, since other threads add layers meanwhile
        self.progress.amount("import", have, self.total)
        with contextlib.suppress(OSError):
            self.file.write_text(json.dumps({"done": have, "total": self.total}))


class Waiting:
    """What to do while another process imports KEY.

    FAILED says whether that import has failed in a way that concerns this user, too. `waited`
    becomes True once there is somebody to wait for.
    """

    def __init__(
        self, cache: ImageCache, key: str, progress: Progress, failed: Callable[[], bool]
    ) -> None:
        self.cache, self.key, self.progress, self.failed = cache, key, progress, failed
        self.waited, self.last = False, 0.0

    def told(self, who: str) -> None:
        """Report that WHO, the holder of the lease, is importing."""
        self.waited = True
        self.progress(f"waiting for the import by {who}")

    def ended(self) -> bool:
        """Return whether the import is done or has failed. Report its progress now and then."""
        if time.monotonic() - self.last > TELL_S:
            self.last = time.monotonic()
            path = self.cache.top / "incoming" / f"{self.key}.json"
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, InputError):
                found = json.loads(files.read_text(path, MAX_TOLD))
                self.progress.amount("import", int(found["done"]), int(found["total"]))
        return self.cache.entry(self.key) is not None or self.failed()
