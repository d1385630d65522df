"""How often the service of a node was asked, and how that ended: for the journal, and for
Prometheus.

A request is answered by a process of its own, whose exit status says how it ended (`name_outcome`);
the service counts.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from typing import TYPE_CHECKING

from hpcstack.core.files import write_text

if TYPE_CHECKING:
    from pathlib import Path

# How a request may end: the image was there, was imported, somebody else's import was waited for;
# it is not shared; the registry refused; nothing could be done; who asked is gone; too many asked
# at once. Their order is the exit statuses'.
OUTCOMES = (
    "there",
    "imported",
    "waited for",
    "not shared",
    "registry",
    "failed",
    "gone",
    "turned away",
)
FIRST_STATUS = (
    10  # below it lie those that Python and signals give: a process that died so has failed
)
NAME = "hpcstack_image_requests_total"


def name_outcome(outcome: str) -> int:
    """The exit status that says OUTCOME."""
    return FIRST_STATUS + OUTCOMES.index(outcome)


class Counters:
    """What a service has counted since it started; in FILE, if one is named, for the node
    exporter's textfile collector (https://github.com/prometheus/node_exporter#textfile-collector).
    """

    def __init__(self, file: Path | None = None) -> None:
        self.file, self.counts, self.is_written = file, Counter[str](), False

    def count(self, outcome: str) -> None:
        self.counts[outcome] += 1
        self.is_written = False

    def count_ended(self, wait_status: int) -> None:
        """A request whose process ended with WAIT_STATUS, as waitpid(2) gives it."""
        number = os.waitstatus_to_exitcode(wait_status) - FIRST_STATUS
        self.count(OUTCOMES[number] if 0 <= number < len(OUTCOMES) else "failed")

    def text(self) -> str:
        """Prometheus' text format, every outcome named from the start: a rate needs a zero to begin
        with.
        """
        rows = [f'{NAME}{{outcome="{outcome}"}} {self.counts[outcome]}' for outcome in OUTCOMES]
        return "\n".join(
            [
                f"# HELP {NAME} Images asked for on this node, by how it ended.",
                f"# TYPE {NAME} counter",
                *rows,
                "",
            ]
        )

    def write(self) -> None:
        """The counts into the file, where they have changed. A full disk ends no service."""
        if not self.file or self.is_written:
            return
        with contextlib.suppress(OSError):
            write_text(self.file, self.text(), on_disk=False)
            self.is_written = True
