"""What a step writes to its standard error: kept in the launch's folder, read for its first
failure, and shown.

One slip in a program is a traceback of each rank, then what the launchers, torchrun and srun make
of it: a hundred lines for one. So `Screen` holds a traceback back for a moment; where a rank ends
of it, that rank's is shown and nothing of what follows. All of it is kept.
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
    """Fed with bytes, it keeps them below FOLDER as far as they are not too many, and hands each
    line to READER.

    SCREEN says what of them is shown; without one it is all of it, as it comes.
    """

    def __init__(
        self, folder: Path, reader: Callable[[str], None], screen: Screen | None = None
    ) -> None:
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
        cut = max(0, len(self.line) - LAST)
        self.line = self.line[cut:]
        if self.screen:
            self.screen.begun = max(0, self.screen.begun - cut)
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
                f"\n... {self.size - FIRST - self.waiting} bytes are left out ...\n".encode()
                + b"".join(self.last)
            )
        return shown

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # a full disk does not end the step
            file = os.open(
                self.path,
                os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC,
                0o600,
            )
            try:
                os.write(file, data)
            finally:
                os.close(file)


HELD_S = 1.5  # how long a traceback waits for the word that its rank has ended
HELD = 256 << 10  # bytes that wait at most
BEGINS_TRACEBACK = re.compile(
    rb"(?: *\d+: )?(?:\[rank\d+\]: ?)?(?:Traceback \(most recent call last\):|  File \")"
)
FRAME = re.compile(
    rb"(?: *\d+: )?(?:\[rank\d+\]: ?)? "
)  # what stands between a traceback's first line and its last
TRACEBACK = re.compile(rb"Traceback \(most recent call last\):")
OF_ANOTHER_RANK = re.compile(rb"(?: *\d+: )?\[rank(\d+)\]: ?")
END_OF_A_RANK = re.compile(rb"hpcstack: rank \d+ on \S+ ended with ")
OWN_WORD = re.compile(
    rb"hpcstack: (?!rank \d+ on \S+ ended with )"
)  # of a script of ours: it says last what happened
OF_SLURM = re.compile(rb"(?:srun|salloc|slurmstepd[^ ]*): ")
# What srun says when Ctrl-C reaches it, too: hpcstack says what that does here
INTERRUPT_OF_SRUN = re.compile(rb"srun: (?:interrupt \(|StepId=\S+ tasks? [\d,-]+: )")
MEMORY = re.compile(rb"(?:slurmstepd|srun)[^ ]*: error: Detected \d+ oom[-_]kill events? in ")


WORDS = (b"Traceback (most recent call last):", b'File "', b"hpcstack: rank ")
LABEL = re.compile(rb" *(?:\d+(?:: ?)?)?(?:\[(?:r(?:a(?:n(?:k(?:\d+(?:\](?::)?)?)?)?)?)?)?)?")


def may_become_a_word(line: bytes) -> bool:
    """Whether LINE, the beginning of one, may yet become a traceback's, or the word of a rank's
    end.
    """
    last = line.rpartition(b"\r")[2]
    if not last.strip():
        return True
    if LABEL.fullmatch(last):
        return True
    label = re.match(rb" *(?:\d+: )?(?:\[rank\d+\]: ?)? *", last)
    rest = last[label.end() :] if label else last
    return any(word.startswith(rest) or rest.startswith(word) for word in WORDS)


def split_tracebacks(lines: list[bytes]) -> list[list[bytes]]:
    """LINES in blocks: each traceback, up to the line that names the exception, is one; each other
    line is one.
    """
    blocks: list[list[bytes]] = []
    is_open = False
    for line in lines:
        begins = bool(TRACEBACK.search(line))
        if begins or not is_open:
            blocks.append([line])
            is_open = begins
            continue
        blocks[-1].append(line)
        is_open = FRAME.match(line) is not None
    return blocks


def without_copies(lines: list[bytes]) -> list[bytes]:
    """LINES with what several ranks have said in the same words once: line by line beside each
    other, or one traceback after the other. What one of them repeats itself (frames of torch,
    chained exceptions) stays.
    """
    apart = [line for at, line in enumerate(lines) if not at or line != lines[at - 1]]
    blocks: list[list[bytes]] = [[]]
    for line in apart:
        if TRACEBACK.search(line):
            blocks.append([])
        blocks[-1].append(line)
    kept: list[list[bytes]] = []
    for block in blocks:
        if block not in kept:
            kept.append(block)
    return [line for block in kept for line in block]


class Screen:
    """What of a step's stderr is shown, line by line.

    FAILURE has been fed with each line before it is added here.
    """

    def __init__(self, failure: Failure, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.failure, self.clock = failure, clock
        self.held: list[bytes] = []
        self.until = 0.0  # when what is held is shown, whatever has happened
        self.begun = 0  # bytes of the unfinished line that are shown already
        self.over = False  # the failure was shown: what follows is only kept
        self.left_out = 0  # lines
        self.tracebacks: set[tuple[bytes, ...]] = set()  # those that were shown since an interrupt
        self.interrupted = False  # by Ctrl-C: what Slurm makes of that is only kept

    def add_line(self, line: bytes) -> bytes:
        """What is shown now that LINE, a whole one, has come."""
        begun, self.begun = self.begun, 0
        if begun:
            return line[begun:]
        if INTERRUPT_OF_SRUN.match(line) or (self.interrupted and self._is_an_echo(line)):
            return b""
        if self.over:
            return self._after(line)
        waits_for_more = bool(self.held) or (bool(self.failure.host) and not self.interrupted)
        if not waits_for_more and not BEGINS_TRACEBACK.match(line):
            return line
        if not self.held:
            self.until = self.clock() + HELD_S
        self.held.append(line)
        return self.release() if sum(map(len, self.held)) < HELD else self._show()

    def add_unfinished(self, line: bytes) -> bytes:
        """What is shown of LINE, the beginning of one: a progress bar is such a line for hours."""
        if self.held or self.over or self.failure.host:
            return b""
        if not self.begun and may_become_a_word(line):
            return b""
        shown, self.begun = line[self.begun :], len(line)
        return shown

    def release(self) -> bytes:
        """What was held for long enough."""
        return self._show() if self.held and self.clock() >= self.until else b""

    def end(self) -> bytes:
        """What is still held."""
        return self._show() if self.held else b""

    def _is_an_echo(self, line: bytes) -> bool:
        """Whether LINE is what Slurm, or a script of ours, makes of a Ctrl-C."""
        return bool(OF_SLURM.match(line) or OWN_WORD.match(line) or END_OF_A_RANK.search(line))

    def _show(self) -> bytes:
        """What is held: all of it where no rank has ended, else what the first one that failed has
        said.
        """
        held, self.held = self.held, []
        if self.interrupted:
            return self._without_what_was_shown(held)
        if not self.failure.host:
            return b"".join(held)
        self.over = True
        before, after = self._split_at_the_end(held)
        own = [line for line in before if self._may_be_of_the_first(line)]
        shown = without_copies(own)
        self.left_out += len(before) - len(shown)
        return b"".join([*shown, *(self._after(line) for line in after)])

    def _without_what_was_shown(self, lines: list[bytes]) -> bytes:
        """LINES without the tracebacks that another rank has said already: an interrupt stops all
        at the same place.
        """
        shown = b""
        for block in split_tracebacks(lines):
            traceback = tuple(OF_ANOTHER_RANK.sub(b"", line) for line in block)
            if len(block) > 1 and traceback in self.tracebacks:
                self.left_out += len(block)
                continue
            self.tracebacks.add(traceback)
            shown += b"".join(block)
        return shown

    def _split_at_the_end(self, lines: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        """LINES before and after the one that says how the first rank that failed has ended."""
        word = self.failure.line.encode(errors="replace")
        for at, line in enumerate(lines):
            if line.rstrip(b"\r\n").endswith(word):
                return lines[:at], lines[at:]
        return lines, []

    def _may_be_of_the_first(self, line: bytes) -> bool:
        """Whether the first rank that failed may have said LINE: torch puts a rank's number before
        its traceback.
        """
        if END_OF_A_RANK.search(line):
            return False
        rank = OF_ANOTHER_RANK.match(line)
        return rank is None or rank[1].decode() == self.failure.rank

    def _after(self, line: bytes) -> bytes:
        """What is shown of LINE, which was said after the first rank had failed: most of it is only
        kept.
        """
        if OWN_WORD.match(line) or MEMORY.match(line):
            return line
        self.left_out += 1
        return b""
