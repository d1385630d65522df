"""The engine for machines that have no other: every step in a container of hpcstack's own.

It needs neither root nor an entry in /etc/subuid. Each step is a layer, which is kept for later
builds (overlay.py).

Tested in tests/unit/build/test_engines.py and tests/integration/test_engines.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.build.engines.base import BuildResult, Job, explain_missing
from hpcstack.build.engines.machine import explain_refused_enclosure
from hpcstack.build.engines.overlay import Layered

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.core.process import Completed, Runner

LAYERED = Layered("builtin")


@dataclass(frozen=True)
class Builtin:
    """Builds by layers, and has no other way."""

    name: str = "builtin"
    tools: tuple[str, ...] = ("unshare", "mount", "sh", "unsquashfs", "mksquashfs")
    definition: str = ""
    splices: bool = True

    def usable(self, runner: Runner) -> str:
        return explain_missing(self.tools, runner) or explain_refused_enclosure(runner)

    def build(self, job: Job, runner: Runner) -> BuildResult:
        return LAYERED.build(job, runner)

    def run_inside(self, name: str, folder: Path, job: Job, runner: Runner) -> Completed:
        return LAYERED.run_inside(name, folder, job, runner)


ENGINE = Builtin()
