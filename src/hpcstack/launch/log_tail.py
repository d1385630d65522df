"""The last lines of a job's logs, and what is written to them while the job goes on."""

from __future__ import annotations

import collections
import contextlib
import os
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from hpcstack.core.errors import InputError
from hpcstack.launch.log_lines import open_log, read_log_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

STEP = 64 << 10  # bytes by which the search for the last lines goes back
LOOK_S = 0.25  # between two looks at the files
ASK_S = 2.0, 15.0  # between two questions to Slurm: while something comes of it, and at most


def read_last_lines(path: Path, count: int) -> list[str]:
    """Return the last COUNT lines of the log at PATH; 0 means all of them.

    Raise InputError where it cannot be read.
    """
    try:
        with open_log(path) as file:
            if count:
                file.seek(_find_last(file, count))
            lines: collections.deque[bytes] = collections.deque(maxlen=count or None)
            for block in read_log_blocks(file):
                lines.extend(block.splitlines())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    return [line.decode("utf-8", "replace") for line in lines]


def _find_last(file: IO[bytes], count: int) -> int:
    """Return where in FILE at least its last COUNT lines begin, or its beginning."""
    if file.read(2) in (b"\xff\xfe", b"\xfe\xff"):
        return 0  # UTF-16, of which no part says so
    at = file.seek(0, 2)
    ends = 0
    while at and ends <= count:
        size = min(STEP, at)
        at = file.seek(at - size)
        ends += file.read(size).count(b"\n")
    return at


@dataclass
class _Followed:
    """A log that is followed: where it is, the open file, and what its last line has so far."""

    path: Path
    file: IO[bytes]
    rest: bytes = b""

    def read_lines(self) -> list[str]:
        """Return the lines that are complete now.

        A file that was cut or replaced is read from its beginning.
        """
        # It may be gone: what is open is read to its end.
        with contextlib.suppress(OSError, InputError):
            if not os.path.samestat(self.path.stat(), os.fstat(self.file.fileno())):
                newer = open_log(self.path)
                self.file.close()
                self.file = newer
                self.rest = b""
        at = self.file.tell()
        if self.file.seek(0, 2) < at:
            at = 0
            self.rest = b""
        self.file.seek(at)
        data = self.rest + self.file.read().replace(b"\0", b"")
        *lines, self.rest = data.split(b"\n")
        return [line.decode("utf-8", "replace") for line in lines]


def _open_log(path: Path, count: int) -> _Followed | None:
    """Return the log at PATH from its last COUNT lines on; None where it cannot be opened now."""
    try:
        file = open_log(path)
    except (OSError, InputError):
        return None
    if count:
        file.seek(_find_last(file, count))
    return _Followed(path, file)


def follow_logs(
    find: Callable[[], Sequence[Path]],
    is_over: Callable[[], bool],
    count: int,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[Path, str]]:
    """Yield (path, line) of the logs that a job writes, as they come, until the job is over.

    FIND returns the logs that are there by now, and IS_OVER whether the job has ended; both ask Slurm,
    so they are called more seldom the longer nothing is written. First come the last COUNT lines of
    each log, or all where it is 0.
    """
    followed: dict[Path, _Followed] = {}
    wait = ASK_S[0]
    passed = wait
    over = False
    while True:
        if passed >= wait:
            passed = 0.0
            wait = min(2 * wait, ASK_S[1])
            over = is_over()
            for path in find():
                log = followed.get(path) or _open_log(path, count)
                if log and path not in followed:
                    followed[path] = log
                    lines = log.read_lines()
                    first = max(0, len(lines) - count) if count else 0
                    yield from ((path, line) for line in lines[first:])

        has_come = False
        for path, log in followed.items():
            for line in log.read_lines():
                has_come = True
                yield path, line
        if has_come:
            wait = ASK_S[0]
            continue
        if over:
            break
        sleep(LOOK_S)
        passed += LOOK_S

    for path, log in followed.items():
        if log.rest:
            yield path, log.rest.decode("utf-8", "replace")
        log.file.close()
