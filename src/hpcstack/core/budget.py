"""What a peer may send in one whole answer: bytes, entries and seconds, counted while it is read.

A peer is whoever is at the other end: a registry, a server of files, a socket, the author of an
archive or a log. A limit of one read is none of an answer: a peer can send one byte a second, or
the same page again and again.

Tested in tests/hostile/test_peers.py.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcstack.core.errors import HpcstackError


@dataclass
class Budget:
    """What is left of what PEER may send; where nothing is left, ERROR is raised, with HINT.

    The clock runs from when the budget is made. What is 0 is not limited.
    """

    peer: str
    error: type[HpcstackError]
    hint: str
    bytes: int
    entries: int = 0
    seconds: float = 0.0
    spent_bytes: int = 0
    spent_entries: int = 0
    began: float = field(default_factory=time.monotonic)

    @property
    def bytes_left(self) -> int:
        return max(0, self.bytes - self.spent_bytes)

    @property
    def seconds_left(self) -> float | None:
        """The seconds that are left, as socket.settimeout takes them; None where all may pass."""
        if not self.seconds:
            return None
        return max(0.001, self.seconds - (time.monotonic() - self.began))

    @property
    def is_late(self) -> bool:
        return bool(self.seconds) and time.monotonic() - self.began > self.seconds

    def take_bytes(self, count: int) -> None:
        """Count COUNT bytes more, and look at the clock."""
        self.count_bytes(count)
        self.check_time()

    def count_bytes(self, count: int) -> None:
        """Count COUNT bytes more; the caller looks at the clock itself."""
        self.spent_bytes += count
        if self.bytes and self.spent_bytes > self.bytes:
            raise self.error(
                f"{self.peer} answered with more than {self._show_limit()}, which no such answer "
                "needs",
                self.hint,
            )

    def _show_limit(self) -> str:
        return f"{self.bytes >> 20} MiB" if self.bytes >= 1 << 20 else f"{self.bytes} bytes"

    def take_entries(self, count: int) -> None:
        """Count COUNT entries more of a list."""
        self.spent_entries += count
        if self.entries and self.spent_entries > self.entries:
            raise self.error(
                f"{self.peer} lists more than {self.entries} entries, which no such list needs",
                self.hint,
            )

    def check_time(self) -> None:
        """Raise the error where the time is up."""
        if self.is_late:
            raise self.error(
                f"{self.peer} has not finished its answer after {self.seconds:.0f} s", self.hint
            )


def read_within(read: Callable[[], bytes], budget: Budget) -> bytes:
    """Return what READ returns, call by call, until that is empty; BUDGET bounds it.

    READ must return what has come, rather than wait for a whole block: else a peer that sends one
    byte a second is waited for.
    """
    out = bytearray()
    while block := read():
        budget.take_bytes(len(block))
        out += block
    return bytes(out)
