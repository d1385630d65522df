"""What a step writes to its standard error: kept in the launch's folder, read for its first failure, and shown.

One slip in a program is a traceback of each rank, then what the launchers, torchrun and srun make of it: a hundred
lines for one. So `Screen` holds a traceback back for a moment; where a rank ends of it, that rank's is shown and
nothing of what follows. All of it is kept.
"""

from __future__ import annotations

import collections
import contextlib
import os
import re
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hpcstack.launch.failure import Failure

NAME = "stderr.log"
FIRST, LAST = 4 << 20, 256 << 10  # bytes that are kept: those at the beginning, and the last


class Stderr:
    """Fed with bytes, it keeps them below FOLDER as far as they are not too many, and hands each line to READER.

    SCREEN says what of them is shown; without one it is all of it, as it comes.
    """

    def __init__(self, folder: Path, reader: Callable[[str], None], screen: Screen | None = None) -> None:
        self.path, self.reader, self.screen = folder / NAME, reader, screen
        self.size = self.waiting = 0
        self.line, self.last = b"", collections.deque[bytes]()

    def feed(self, data: bytes) -> bytes:
        """What of DATA is to be shown now."""
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
        shown = b""
        for line in lines:
            self.reader(line.decode(errors="replace"))
            if self.screen:
                shown += self.screen.add_line(line + b"\n")
        if not self.screen:
            return data
        return shown + self.screen.add_unfinished(self.line)

    def release(self) -> bytes:
        """What is to be shown now that some time has passed."""
        return self.screen.release() if self.screen else b""

    def add(self, line: str) -> None:
        """LINE, which is ours, below what the step has said."""
        self._write(line.encode(errors="replace") + b"\n")

    def end(self) -> bytes:
        """All was said: the last bytes are kept, too. What is still to be shown."""
        shown = b""
        if self.line:
            self.reader(self.line.decode(errors="replace"))
            if self.screen:
                shown = self.screen.add_line(self.line)
        if self.screen:
            shown += self.screen.end()
        if self.last:
            self._write(
                f"\n... {self.size - FIRST - self.waiting} bytes are left out ...\n".encode() + b"".join(self.last)
            )
        return shown

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # a full disk does not end the step
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, data)
            finally:
                os.close(file)


HELD_S = 1.5  # how long a traceback waits for the word that its rank has ended
HELD = 256 << 10  # bytes that wait at most
BEGINS_TRACEBACK = re.compile(rb"(?: *\d+: )?(?:\[rank\d+\]: ?)?(?:Traceback \(most recent call last\):|  File \")")
OF_ANOTHER_RANK = re.compile(rb"(?: *\d+: )?\[rank(\d+)\]: ?")
END_OF_A_RANK = re.compile(rb"hpcstack: rank \d+ on \S+ ended with ")
OWN_WORD = re.compile(rb"hpcstack: (?!rank \d+ on \S+ ended with )")  # of a script of ours: it says last what happened
MEMORY = re.compile(rb"(?:slurmstepd|srun)[^ ]*: error: Detected \d+ oom[-_]kill events? in ")


class Screen:
    """What of a step's stderr is shown, line by line. FAILURE has been fed with each line before it is added here."""

    def __init__(self, failure: Failure, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.failure, self.clock = failure, clock
        self.held: list[bytes] = []
        self.until = 0.0  # when what is held is shown, whatever has happened
        self.begun = 0  # bytes of the unfinished line that are shown already
        self.over = False  # the failure was shown: what follows is only kept
        self.left_out = 0  # lines

    def add_line(self, line: bytes) -> bytes:
        """What is shown now that LINE, a whole one, has come."""
        begun, self.begun = self.begun, 0
        if begun:
            return line[begun:]
        if self.over:
            return self._after(line)
        if not self.held and not self.failure.host and not BEGINS_TRACEBACK.match(line):
            return line
        if not self.held:
            self.until = self.clock() + HELD_S
        self.held.append(line)
        return self.release() if sum(map(len, self.held)) < HELD else self._show()

    def add_unfinished(self, line: bytes) -> bytes:
        """What is shown of LINE, the beginning of one: a progress bar is such a line for hours."""
        if self.held or self.over or self.failure.host:
            return b""
        if not self.begun and (not line or line.lstrip()[:1] in (b"[", b"T", b"F", b"h") or line[:1] == b" "):
            return b""  # it may become a traceback, or the word of a rank's end
        shown, self.begun = line[self.begun :], len(line)
        return shown

    def release(self) -> bytes:
        """What was held for long enough."""
        return self._show() if self.held and self.clock() >= self.until else b""

    def end(self) -> bytes:
        """What is still held."""
        return self._show() if self.held else b""

    def _show(self) -> bytes:
        """What is held: all of it where no rank has ended, else what the first one that failed has said."""
        held, self.held = self.held, []
        if not self.failure.host:
            return b"".join(held)
        self.over = True
        said, ended = [], False
        for line in held:
            text = line.decode(errors="replace")
            ended = ended or text.rstrip("\r\n").endswith(self.failure.line)
            if ended:
                said.append(self._after(line))
                continue
            rank = OF_ANOTHER_RANK.match(line)
            of_another = rank is not None and rank[1].decode() != self.failure.rank
            if of_another or END_OF_A_RANK.search(line) or line in said:  # ranks that end of the same slip say the same
                self.left_out += 1
            else:
                said.append(line)
        return b"".join(said)

    def _after(self, line: bytes) -> bytes:
        """What is shown of LINE, which was said after the first rank had failed: most of it is only kept."""
        if OWN_WORD.match(line) or MEMORY.match(line):
            return line
        self.left_out += 1
        return b""
