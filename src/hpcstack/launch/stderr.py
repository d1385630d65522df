"""Keep a step's standard error in the launch's folder, read it for the first failure, and show it.

One slip in a program gives a traceback from each rank, and then the reports of the launchers,
torchrun and srun: a hundred lines for one. So `Screen` holds a traceback back for a moment. If a
rank ends of it, the traceback of that rank is shown and nothing of what follows. All of it is kept.
"""

from __future__ import annotations

import collections
import contextlib
import os
import re
import time
from typing import TYPE_CHECKING

from hpcstack.slurm.step_messages import ENDED, SPEAKER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hpcstack.launch.failure import Failure

NAME = "stderr.log"
FIRST, LAST = 4 << 20, 256 << 10  # bytes that are kept of the beginning, and of the end


class Stderr:
    """Keeps the bytes that it is fed in a file in FOLDER, and hands each line to READER.

    Of more than FIRST bytes, only the first ones and about the LAST ones are kept. SCREEN decides
    what is shown; without one it is everything, as it comes.
    """

    def __init__(
        self, folder: Path, reader: Callable[[str], None], screen: Screen | None = None
    ) -> None:
        self.path = folder / NAME
        self.reader = reader
        self.screen = screen
        self.size = 0  # bytes that have come
        self.line = b""  # the unfinished last line
        self.last = collections.deque[bytes]()  # what came after the first bytes, not yet written
        self.waiting = 0  # bytes in `last`

    def feed(self, data: bytes) -> bytes:
        """Take DATA in, and return what is to be shown now."""
        if self.size < FIRST:
            self._write(data)
        else:
            self.last.append(data)
            self.waiting += len(data)
            while self.waiting - len(self.last[0]) > LAST:
                self.waiting -= len(self.last.popleft())
        self.size += len(data)

        *lines, self.line = (self.line + data).split(b"\n")
        # A line without an end, such as a progress bar's, must not grow for hours.
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
        """Return what is to be shown now that some time has passed."""
        if not self.screen:
            return b""
        return self.screen.release()

    def add(self, line: str) -> None:
        """Keep LINE, which is hpcstack's own, below what the step has said."""
        self._write(line.encode(errors="replace") + b"\n")

    def end(self) -> bytes:
        """Write down the last bytes, since no more will come. Return what is still to be shown."""
        shown = b""
        if self.line:
            self.reader(self.line.decode(errors="replace"))
            if self.screen:
                shown = self.screen.add_line(self.line)
        if self.screen:
            shown += self.screen.end()
        if self.last:
            left_out = self.size - FIRST - self.waiting
            self._write(f"\n... {left_out} bytes are left out ...\n".encode() + b"".join(self.last))
        return shown

    def _write(self, data: bytes) -> None:
        """Append DATA to the kept file. A full disk does not end the step."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with contextlib.suppress(OSError):
            file = os.open(self.path, flags, 0o600)
            try:
                os.write(file, data)
            finally:
                os.close(file)


HELD_S = 1.5  # how long a traceback is held back for the message that its rank has ended
HELD = 256 << 10  # bytes that are held back at most
# A line may begin with the label of srun (`3: `) and with the rank that torch names (`[rank3]: `).
BEGINS_TRACEBACK = re.compile(
    rb"(?: *\d+: )?(?:\[rank\d+\]: ?)?(?:Traceback \(most recent call last\):|  File \")"
)
# A line between a traceback's first and its last: it is indented
FRAME = re.compile(rb"(?: *\d+: )?(?:\[rank\d+\]: ?)? ")
TRACEBACK = re.compile(rb"Traceback \(most recent call last\):")
OF_ANOTHER_RANK = re.compile(rb"(?: *\d+: )?\[rank(\d+)\]: ?")
END_OF_A_RANK = re.compile(rb"hpcstack: rank \d+ on \S+ (?:ended with|had left before) ")
# A message of one of hpcstack's scripts, which says at the end what happened
OWN_WORD = re.compile(rb"hpcstack: (?!rank \d+ on \S+ (?:ended with|had left before) )")
OF_SLURM = re.compile(rf"(?:srun|salloc|slurmstepd[^ ]*): |{SPEAKER}{ENDED}".encode())
# What srun prints when Ctrl-C reaches it, too. It is never shown: hpcstack says what Ctrl-C does.
INTERRUPT_OF_SRUN = re.compile(rb"srun: (?:interrupt \(|StepId=\S+ tasks? [\d,-]+: )")
MEMORY = re.compile(rf"{SPEAKER}error: Detected \d+ oom[-_]kill events? in ".encode())


# How the lines begin that are not shown as they come
WORDS = (b"Traceback (most recent call last):", b'File "', b"hpcstack: rank ")
# Any beginning of `3: [rank3]:`
LABEL = re.compile(rb" *(?:\d+(?:: ?)?)?(?:\[(?:r(?:a(?:n(?:k(?:\d+(?:\](?::)?)?)?)?)?)?)?)?")


def may_become_a_word(line: bytes) -> bool:
    """Whether LINE, which is unfinished, may still become one that is not shown as it comes.

    These are the lines of a traceback, and the one that says how a rank ended.
    """
    last = line.rpartition(b"\r")[2]
    if not last.strip():
        return True
    if LABEL.fullmatch(last):
        return True
    label = re.match(rb" *(?:\d+: )?(?:\[rank\d+\]: ?)? *", last)
    rest = last
    if label:
        rest = last[label.end() :]
    return any(word.startswith(rest) or rest.startswith(word) for word in WORDS)


def split_tracebacks(lines: list[bytes]) -> list[list[bytes]]:
    """Return LINES in blocks: a whole traceback with its exception, or a single other line."""
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
    """Return LINES without what several ranks have said in the same words.

    Equal lines beside each other become one, and so do equal tracebacks. A traceback that repeats
    frames (of torch, in chained exceptions) keeps them.
    """
    without_neighbours = [line for at, line in enumerate(lines) if at == 0 or line != lines[at - 1]]
    blocks: list[list[bytes]] = [[]]
    for line in without_neighbours:
        if TRACEBACK.search(line):
            blocks.append([])
        blocks[-1].append(line)

    kept: list[list[bytes]] = []
    for block in blocks:
        if block not in kept:
            kept.append(block)
    return [line for block in kept for line in block]


class Screen:
    """Decides what of a step's stderr is shown, line by line.

    FAILURE must have been fed with each line before it is added here.
    """

    def __init__(self, failure: Failure, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.failure = failure
        self.clock = clock
        self.held: list[bytes] = []  # lines that are held back
        self.until = 0.0  # when they are shown, whatever has happened by then
        self.begun = 0  # bytes of the unfinished line that are shown already
        self.over = False  # the failure was shown: what follows is only kept
        self.left_out = 0  # lines
        self.tracebacks: set[tuple[bytes, ...]] = set()  # those that were shown since a Ctrl-C
        self.interrupted = False  # by Ctrl-C: what Slurm says of that is only kept

    def add_line(self, line: bytes) -> bytes:
        """Take in LINE, which is complete, and return what is shown now."""
        begun, self.begun = self.begun, 0
        if begun:
            return line[begun:]
        if INTERRUPT_OF_SRUN.match(line) or (self.interrupted and self._is_an_echo(line)):
            return b""
        if self.over:
            return self._filter_after_failure(line)

        waits_for_more = bool(self.held) or (bool(self.failure.host) and not self.interrupted)
        if not waits_for_more and not BEGINS_TRACEBACK.match(line):
            return line

        # What is due goes first. With this line it would part the traceback that begins here, whose
        # pieces are not known again when another rank says the same.
        due = b""
        if self.interrupted and TRACEBACK.search(line):
            due = self.release()

        if not self.held:
            self.until = self.clock() + HELD_S
        self.held.append(line)
        if sum(map(len, self.held)) >= HELD:
            return due + self._show_held()
        return due + self.release()

    def add_unfinished(self, line: bytes) -> bytes:
        """Return what is shown now of LINE, which has no end yet.

        A progress bar is such a line for hours, so it cannot wait for its end.
        """
        if self.held or self.over or self.failure.host:
            return b""
        if not self.begun and may_become_a_word(line):
            return b""
        shown, self.begun = line[self.begun :], len(line)
        return shown

    def release(self) -> bytes:
        """Return what was held back for long enough."""
        if not self.held or self.clock() < self.until:
            return b""
        return self._show_held()

    def end(self) -> bytes:
        """Return what is still held back."""
        if not self.held:
            return b""
        return self._show_held()

    def _is_an_echo(self, line: bytes) -> bool:
        """Whether LINE is what Slurm, or a script of hpcstack's, says after a Ctrl-C."""
        return bool(OF_SLURM.match(line) or OWN_WORD.match(line) or END_OF_A_RANK.search(line))

    def _show_held(self) -> bytes:
        """Return what is shown of the lines that were held back, and hold none any more.

        It is all of them where no rank has ended, else what the rank that failed first has said.
        """
        held, self.held = self.held, []
        if self.interrupted:
            return self._drop_shown_tracebacks(held)
        if not self.failure.host:
            return b"".join(held)

        self.over = True
        before, after = self._split_at_the_end(held)
        own = [line for line in before if self._may_be_of_the_first(line)]
        shown = without_copies(own)
        self.left_out += len(before) - len(shown)
        return b"".join([*shown, *(self._filter_after_failure(line) for line in after)])

    def _drop_shown_tracebacks(self, lines: list[bytes]) -> bytes:
        """Return LINES without tracebacks that were shown of another rank already.

        An interrupt stops all ranks at the same place.
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
        """Return LINES in two parts, of which the second begins with the end of the first rank."""
        message = self.failure.line.encode(errors="replace")
        for at, line in enumerate(lines):
            if line.rstrip(b"\r\n").endswith(message):
                return lines[:at], lines[at:]
        return lines, []

    def _may_be_of_the_first(self, line: bytes) -> bool:
        """Whether the first rank that failed may have said LINE.

        torch puts a rank's number before its traceback; a line without a number may be any rank's.
        """
        if END_OF_A_RANK.search(line):
            return False
        rank = OF_ANOTHER_RANK.match(line)
        return rank is None or rank[1].decode() == self.failure.rank

    def _filter_after_failure(self, line: bytes) -> bytes:
        """Return what is shown of LINE, which came after the first rank had failed.

        Only hpcstack's own messages and those of a memory limit are shown; the rest is counted.
        """
        if OWN_WORD.match(line) or MEMORY.match(line):
            return line
        self.left_out += 1
        return b""
