"""Ctrl-C on a launch: each rank is interrupted once, and has time to end before the step is ended.

srun, torchrun and DeepSpeed end every rank as soon as one is gone. A signal that Slurm delivers reaches torchrun, the
runtime and what serves the image as well as the rank. So a step beside the launch's own
(launchers/on-node/interrupt.sh) tells the shell around each rank (launchers/in-image/rank.sh), which interrupts its
rank and stays when that has ended.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core import data
from hpcstack.core.errors import HpcstackError, counted
from hpcstack.core.process import write_stderr
from hpcstack.launch.failure import last_line
from hpcstack.launch.hang import named
from hpcstack.launch.record import read
from hpcstack.launch.stacks import find_running, step_beside

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.core.process import Runner
    from hpcstack.launch.failure import Failure
    from hpcstack.launch.record import Launch
    from hpcstack.launch.stderr import Screen

TIME_S = 30  # as long as Slurm waits by default between TERM and KILL (KillWait of slurm.conf)
START_S = 45  # for the step beside to start and to end, on many nodes
INTERRUPTED = 130  # the status of what SIGINT has ended
ANSWER = re.compile(r"^ *\d+: hpcstack-interrupted: (\d+)((?: \d+)*)$", re.MULTILINE)


@dataclass(frozen=True)
class Told:
    """What came of it: how many ranks were interrupted, and which of them had not ended in time."""

    ranks: int
    left: tuple[int, ...]


class Interruption:
    """What signals do to the launch of FOLDER: the first INT is gentle, and after all others nobody is waited for."""

    def __init__(self, folder: Path, runner: Runner, screen: Screen | None) -> None:
        self.folder, self.runner, self.screen = folder, runner, screen
        self.has_come = False
        self.twice = False
        self.told: Told | None = None

    def answer(self, number: signal.Signals) -> bool:
        """End the launch as signal NUMBER asks for it. False where the caller must end what it has started."""
        if number != signal.SIGINT:
            return end_step(read(self.folder), self.runner)
        if self.has_come:
            return self._interrupt_again()
        self.has_come = True
        if self.screen:
            self.screen.interrupted = True
        return self._interrupt()

    def _interrupt(self) -> bool:
        """Interrupt the ranks, wait for them, end their step."""
        launch = read(self.folder)
        if not launch.step:
            return False
        write_stderr(
            f"hpcstack: interrupted: the ranks have {TIME_S} s to end. Ctrl-C once more ends them now\n".encode()
        )
        self.told = interrupt_ranks(launch, self.runner)
        return bool(self.told and self.told.ranks) and end_step(launch, self.runner)

    def _interrupt_again(self) -> bool:
        """End the step now."""
        self.twice = True
        if self.screen:
            self.screen.over = True
        return end_step(read(self.folder), self.runner)

    def end(self, failure: Failure, log: Path) -> tuple[int, str]:
        """(the launch's status, its last line). FAILURE was fed with what the step has said, which LOG has."""
        if failure.host and not self.twice:
            said = f"interrupted, and {failure.end(INTERRUPTED)[1]}"
            return INTERRUPTED, last_line(said, INTERRUPTED, str(log))
        return INTERRUPTED, last_line(self._outcome(), INTERRUPTED)

    def _outcome(self) -> str:
        if self.twice:
            return "interrupted twice: nobody waited for the ranks"
        if self.told is None or not self.told.ranks:
            return "interrupted"
        if self.told.left:
            them = "it was" if len(self.told.left) == 1 else "they were"
            which = "rank" if len(self.told.left) == 1 else "ranks"
            return f"interrupted: {which} {named(self.told.left)} had not ended after {TIME_S} s, and {them} killed"
        return f"interrupted: {counted(self.told.ranks, 'rank')} ended"


def interrupt_ranks(launch: Launch, runner: Runner) -> Told | None:
    """Interrupt the ranks of LAUNCH on all its nodes and wait for them; None where nothing can be known of them."""
    try:
        job, nodes = find_running(launch.number, runner)
        script = data.script("on-node/interrupt.sh")
        beside = [*step_beside(job, nodes, "interrupt"), script, "interrupt", job, launch.step, str(TIME_S)]
        done = runner.output(beside, timeout=TIME_S + START_S)
    except HpcstackError:
        return None

    answers = ANSWER.findall(done.stdout)
    if not answers:
        return None
    left = sorted(int(number) for _, numbers in answers for number in numbers.split())
    return Told(sum(int(count) for count, _ in answers), tuple(left))


def end_step(launch: Launch, runner: Runner) -> bool:
    """End the step of LAUNCH: Slurm tells its ranks (TERM), and then kills them. False where there is none to end."""
    if not launch.step:
        return False
    try:
        return runner.output(["scancel", f"{launch.number}.{launch.step}"]).status == 0
    except HpcstackError:
        return False
