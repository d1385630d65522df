"""Count how often a node's service was asked, and how that ended, for Prometheus.

Each request is answered by a process of its own, whose exit status says how it ended
(`name_outcome`). The service counts these.

Tested in tests/unit/imagecache/test_serve.py.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from typing import TYPE_CHECKING

from hpcstack.core.files import write_text
from hpcstack.core.prometheus import Metric, render_metrics_text

if TYPE_CHECKING:
    from pathlib import Path

# How a request may end. The order gives the exit statuses.
OUTCOMES = (
    "there",
    "imported",
    "waited for",  # another request was importing it
    "not shared",
    "registry",  # the registry refused, or did not answer
    "failed",
    "gone",  # whoever asked has hung up
    "turned away",  # too many asked at once
)
FIRST_STATUS = 10  # statuses below it are Python's own: such a process has failed
NAME = "image_requests_total"  # behind `hpcstack_`


def name_outcome(outcome: str) -> int:
    """Return the exit status that stands for OUTCOME."""
    return FIRST_STATUS + OUTCOMES.index(outcome)


class Counters:
    """What a service has counted since it started.

    They are written to FILE, if one is named, for the node exporter's textfile collector:
    https://github.com/prometheus/node_exporter#textfile-collector.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.file, self.counts, self.is_written = file, Counter[str](), False

    def count(self, outcome: str) -> None:
        """Count one request that ended as OUTCOME."""
        self.counts[outcome] += 1
        self.is_written = False

    def count_ended(self, wait_status: int) -> None:
        """Count a request whose process ended with WAIT_STATUS, as waitpid(2) gives it."""
        number = os.waitstatus_to_exitcode(wait_status) - FIRST_STATUS
        outcome = "failed"
        if 0 <= number < len(OUTCOMES):
            outcome = OUTCOMES[number]
        self.count(outcome)

    def text(self) -> str:
        """Return the counts in Prometheus' text format.

        Every outcome is there from the start: a rate needs a zero to begin with.
        """
        counts: dict[tuple[str, ...], float]
        counts = {(outcome,): self.counts[outcome] for outcome in OUTCOMES}
        about = "Images asked for on this node, by how it ended."
        return render_metrics_text([Metric(NAME, about, ("outcome",), counts, "counter")])

    def write(self) -> None:
        """Write the counts to the file if they have changed."""
        if not self.file or self.is_written:
            return
        with contextlib.suppress(OSError):  # a full disk must not end the service
            write_text(self.file, self.text(), on_disk=False)
            self.is_written = True
