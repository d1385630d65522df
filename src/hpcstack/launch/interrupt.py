"""Ctrl-C on a launch: each rank is interrupted once, and has time to end before the step is ended.

srun, torchrun and DeepSpeed end every rank as soon as one is gone. A signal that Slurm delivers
reaches torchrun, the runtime and what serves the image as well as the rank. So a step beside the
launch's own (launchers/on-node/interrupt.sh) tells the shell around each rank
(launchers/in-image/rank.sh), which interrupts its rank and stays when that has ended.
"""

from __future__ import annotations

import re
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core import data
from hpcstack.core.errors import HpcstackError, format_count
from hpcstack.core.process import write_stderr
from hpcstack.launch.failure import last_line
from hpcstack.launch.hang import format_ranges
from hpcstack.launch.record import read_launch
from hpcstack.launch.stacks import find_running, step_beside

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hpcstack.core.process import Runner
    from hpcstack.launch.failure import Failure
    from hpcstack.launch.record import Launch
    from hpcstack.launch.stderr import Screen, Stderr

TIME_S = 30  # as long as Slurm waits by default between TERM and KILL (KillWait of slurm.conf)
START_S = 45  # for the step beside to start and to end, on many nodes
SAID = "hpcstack: interrupted"
INTERRUPTED = 130  # the status of what SIGINT has ended
ANSWER = re.compile(r"^ *\d+: hpcstack-interrupted: (\d+)((?: \d+)*)$", re.MULTILINE)


@dataclass(frozen=True)
class Told:
    """What came of it: how many ranks were interrupted, and which of them had not ended in time."""

    ranks: int
    left: tuple[int, ...]


class Interruption:
    """What signals do to the launch of FOLDER: the first INT is gentle, and after all others nobody
    is waited for.

    STDERR has what the step says; SCREEN what of it is shown, where that is not all.
    """

    def __init__(self, folder: Path, runner: Runner, stderr: Stderr, screen: Screen | None) -> None:
        self.folder, self.runner, self.stderr, self.screen = folder, runner, stderr, screen
        self.has_come = False
        self.twice = False
        self.told: Told | None = None

    def answer(self, number: signal.Signals, terminate: Callable[[], None]) -> None:
        """End the launch as signal NUMBER asks for it.

        TERMINATE ends what was started here, and so the step.
        """
        if number != signal.SIGINT:
            self._end_by_term(terminate)
        elif not self.has_come:
            self._interrupt(terminate)
        else:
            self._interrupt_again(terminate)

    def _end_by_term(self, terminate: Callable[[], None]) -> None:
        """Send TERM to the step, and end it when its time is up."""
        launch = read_launch(self.folder)
        if not launch.step or not _cancel_step(launch, self.runner, "--signal=TERM"):
            terminate()
            return
        time.sleep(TIME_S)  # in a thread, which ends with the launch
        _cancel_step(launch, self.runner)
        terminate()

    def _interrupt(self, terminate: Callable[[], None]) -> None:
        """Interrupt the ranks, wait for them, end their step."""
        self.has_come = True
        if self.screen:
            self.screen.interrupted = True
        self.stderr.add(SAID)  # what comes below it is said by a step that ends
        launch = read_launch(self.folder)
        if not launch.step:
            terminate()
            return
        write_stderr(
            f"{SAID}: the ranks have {TIME_S} s to end. Ctrl-C once more ends them now\n".encode()
        )
        self.told = interrupt_ranks(launch, self.runner)
        if not _cancel_step(launch, self.runner):
            terminate()

    def _interrupt_again(self, terminate: Callable[[], None]) -> None:
        """End the step now."""
        self.twice = True
        if self.screen:
            self.screen.over = True
        launch = read_launch(self.folder)
        if not launch.step or not _cancel_step(launch, self.runner):
            terminate()

    def end(self, failure: Failure) -> tuple[int, str]:
        """(the launch's status, its last line). FAILURE was fed with what the step has said."""
        if self.twice:
            return INTERRUPTED, last_line(
                "interrupted twice: nobody waited for the ranks", INTERRUPTED, self._log
            )
        said = ["interrupted"]
        if self.told and self.told.left:
            said.append(f"{_ranks_had_not_ended(self.told.left)} after {TIME_S} s")
        if failure.host and not failure.was_interrupted:
            said.append(failure.end(INTERRUPTED)[1])
        if len(said) > 1:
            return INTERRUPTED, last_line("; ".join(said), INTERRUPTED, self._log)
        if self.told and self.told.ranks:
            said = [f"interrupted: {format_count(self.told.ranks, 'rank')} ended"]
        return INTERRUPTED, last_line(said[0], INTERRUPTED)

    @property
    def _log(self) -> str:
        return str(self.stderr.path)


def _ranks_had_not_ended(left: tuple[int, ...]) -> str:
    if len(left) == 1:
        return f"rank {left[0]} was killed, which had not ended"
    return f"ranks {format_ranges(left)} were killed, which had not ended"


def interrupt_ranks(launch: Launch, runner: Runner) -> Told | None:
    """Interrupt the ranks of LAUNCH on all its nodes and wait for them; None where nothing can be
    known of them.
    """
    try:
        job, nodes = find_running(launch.number, runner)
        script = data.read_script("on-node/interrupt.sh")
        beside = step_beside(job, nodes, "interrupt", TIME_S + START_S)
        done = runner.output(
            [*beside, script, "interrupt", job, launch.step, str(TIME_S)],
            timeout=TIME_S + START_S + 10,
        )
    except HpcstackError:
        return None

    answers = ANSWER.findall(done.stdout)
    if not answers:
        return None
    left = sorted(int(number) for _, numbers in answers for number in numbers.split())
    return Told(sum(int(count) for count, _ in answers), tuple(left))


def _cancel_step(launch: Launch, runner: Runner, *options: str) -> bool:
    """Let Slurm kill the step of LAUNCH, or do what OPTIONS of scancel say.

    Whether Slurm has taken it.
    """
    try:
        return runner.output(["scancel", *options, f"{launch.number}.{launch.step}"]).status == 0
    except HpcstackError:
        return False
