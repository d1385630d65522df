"""What an engine is: rendered files in, one squashfs out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hpcstack.process import Completed, Runner
from hpcstack.site import BuildSite


@dataclass(frozen=True)
class Job:
    """One build: everything lies below `work`, on local disk, and is private to it.

    `context` holds the rendered files, `lent` what the site lends (bound at /mnt), `output` becomes the image.
    """

    context: Path
    lent: Path
    work: Path
    output: Path
    log: Path
    settings: BuildSite
    on_line: Callable[[str], None]
    logins: tuple[tuple[str, tuple[str, str]], ...] = field(default=(), repr=False)  # ((host, (user, key)), ...)


class Engine(Protocol):
    """`build` makes job.output or returns the program that failed; it leaves clean-up of job.work to the caller.

    `run_inside` runs FOLDER/build/settle.sh in the image BASE, with FOLDER at /opt/hpcstack, nothing of the user's home
    and no other folder of the host but what the site lends.
    """

    @property
    def name(self) -> str: ...

    @property
    def tools(self) -> tuple[str, ...]: ...

    def build(self, job: Job, runner: Runner) -> Completed: ...

    def run_inside(self, base: Path, folder: Path, job: Job, runner: Runner) -> Completed: ...
