"""What a step writes to its standard error: kept in the launch's folder, and read for the first rank that failed."""

from __future__ import annotations

import collections
import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAME = "stderr.log"
FIRST, LAST = 4 << 20, 256 << 10  # bytes that are kept: those at the beginning, and the last


class Stderr:
    """Fed with bytes, it keeps them below FOLDER as far as they are not too many, and hands each line to READER."""

    def __init__(self, folder: Path, reader: Callable[[str], None]) -> None:
        self.path, self.reader = folder / NAME, reader
        self.size = self.waiting = 0
        self.line, self.last = b"", collections.deque[bytes]()

    def feed(self, data: bytes) -> None:
        if self.size < FIRST:
            self._write(data)
        else:
            self.last.append(data)
            self.waiting += len(data)
            while self.waiting - len(self.last[0]) > LAST:
                self.waiting -= len(self.last.popleft())
        self.size += len(data)
        *lines, self.line = (self.line + data).split(b"\n")
        self.line = self.line[-LAST:]
        for line in lines:
            self.reader(line.decode(errors="replace"))

    def end(self) -> None:
        """All was said: the last bytes are kept, too."""
        if self.line:
            self.reader(self.line.decode(errors="replace"))
        if self.last:
            self._write(
                f"\n... {self.size - FIRST - self.waiting} bytes are left out ...\n".encode() + b"".join(self.last)
            )

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # a full disk does not end the step
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, data)
            finally:
                os.close(file)
