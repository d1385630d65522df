"""Handle Ctrl-C on a launch: interrupt each rank once and give it time before the step is ended.

srun, torchrun and DeepSpeed end every rank as soon as one is gone. A signal that Slurm delivers
reaches torchrun, the runtime and what serves the image as well as the rank. So a second step beside
the launch's own (launchers/on-node/interrupt.sh) signals the shell around each rank
(launchers/in-image/rank.sh). That shell interrupts its rank, and stays after the rank has ended.
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
from hpcstack.launch.record import BY_CTRL_C, read_launch
from hpcstack.launch.stacks import find_running
from hpcstack.slurm.client import Client
from hpcstack.slurm.state import JobState

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hpcstack.core.process import Runner
    from hpcstack.launch.failure import Failure
    from hpcstack.launch.record import Launch
    from hpcstack.launch.stderr import Screen, Stderr

TIME_S = 30  # as long as Slurm waits by default between TERM and KILL (KillWait of slurm.conf)
START_S = 45  # for the second step to start and to end, on many nodes
SAID = "hpcstack: interrupted"
INTERRUPTED, HUNG_UP = 130, 129  # the exit statuses after SIGINT and SIGHUP
BY_HANGUP = "a closed terminal"
HANGUP = "the terminal was closed"
SAID_OF_HANGUP = f"{SAID}: {HANGUP}"
BATCH = "launch --batch goes on without one"
# The answer of one node: how many ranks it interrupted, and the numbers of those that did not end
ANSWER = re.compile(r"^ *\d+: hpcstack-interrupted: (\d+)((?: \d+)*)$", re.MULTILINE)


@dataclass(frozen=True)
class Told:
    """How many ranks were interrupted, and the numbers of those that had not ended in time."""

    ranks: int
    left: tuple[int, ...]


class Interruption:
    """Answers the signals that reach the launch of FOLDER.

    The first SIGINT gives the ranks time; a second one ends the step at once. Any other signal is
    sent to the step as SIGTERM. STDERR keeps what the step says, and SCREEN decides what of it is
    shown; it is None where all of it is.
    """

    def __init__(self, folder: Path, runner: Runner, stderr: Stderr, screen: Screen | None) -> None:
        self.folder = folder
        self.runner = runner
        self.stderr = stderr
        self.screen = screen
        self.by = ""  # who ends the launch: BY_CTRL_C, BY_HANGUP, or empty for nobody here
        self.twice = False
        self.told: Told | None = None  # None where the ranks' nodes gave no answer

    def answer(self, number: signal.Signals, terminate: Callable[[], None]) -> None:
        """End the launch as signal NUMBER asks for it.

        TERMINATE ends what was started on this machine, and with it the step.
        """
        if number == signal.SIGHUP and not self.by:
            self.by = BY_HANGUP
            self.stderr.add(SAID_OF_HANGUP)
        if number != signal.SIGINT:
            self._end_by_term(terminate)
        elif self.by != BY_CTRL_C:
            self._interrupt(terminate)
        else:
            self._interrupt_again(terminate)

    @property
    def has_come(self) -> bool:
        """Whether the user has ended the launch: by Ctrl-C, or by closing the terminal."""
        return bool(self.by)

    def _end_by_term(self, terminate: Callable[[], None]) -> None:
        """Send SIGTERM to the step, and end it after TIME_S seconds."""
        launch = read_launch(self.folder)
        if not launch.step or not _end_step(launch, self.runner, "TERM"):
            terminate()
            return
        time.sleep(TIME_S)  # this is a thread of its own, which ends with the launch
        _end_step(launch, self.runner)
        terminate()

    def _interrupt(self, terminate: Callable[[], None]) -> None:
        """Interrupt the ranks, wait for them, and end their step."""
        self.by = BY_CTRL_C
        if self.screen:
            self.screen.interrupted = True
        # Whoever reads the log learns that what follows was said by a step that was being ended.
        self.stderr.add(SAID)
        launch = read_launch(self.folder)
        if not launch.step:  # it waits for nodes: there are no ranks yet
            terminate()
            return
        write_stderr(
            f"{SAID}: the ranks have {TIME_S} s to end. Ctrl-C once more ends them now\n".encode()
        )
        self.told = interrupt_ranks(launch, self.runner)
        if not _end_step(launch, self.runner):
            terminate()

    def _interrupt_again(self, terminate: Callable[[], None]) -> None:
        """End the step now, without waiting for the ranks, and show nothing more of it."""
        self.twice = True
        if self.screen:
            self.screen.over = True
        launch = read_launch(self.folder)
        if not launch.step or not _end_step(launch, self.runner):
            terminate()

    def end(self, failure: Failure) -> tuple[JobState, str]:
        """Return (how the launch ended, its last line).

        FAILURE was fed with what the step has said. The log is named only where something went
        wrong beside the interrupt.
        """
        if self.by == BY_HANGUP:
            state = JobState("CANCELLED", HUNG_UP, BY_HANGUP)
            return state, last_line(f"{HANGUP}: {BATCH}", HUNG_UP)
        state = JobState("CANCELLED", INTERRUPTED, BY_CTRL_C)
        return state, self._describe_interrupt(failure)

    def _describe_interrupt(self, failure: Failure) -> str:
        """Return the last line of a launch that Ctrl-C has ended."""
        log = str(self.stderr.path)
        if self.twice:
            said = "interrupted twice: nobody waited for the ranks"
            return last_line(said, INTERRUPTED, log)

        problems = []
        if self.told and self.told.left:
            problems.append(f"{_describe_killed(self.told.left)} after {TIME_S} s")
        if failure.host and not failure.was_interrupted:
            problems.append(failure.end(INTERRUPTED)[1])
        if problems:
            return last_line("; ".join(["interrupted", *problems]), INTERRUPTED, log)

        said = "interrupted"
        if self.told and self.told.ranks:
            said = f"interrupted: {format_count(self.told.ranks, 'rank')} ended"
        return last_line(said, INTERRUPTED)


def _describe_killed(left: tuple[int, ...]) -> str:
    if len(left) == 1:
        return f"rank {left[0]} was killed: it had not ended"
    return f"ranks {format_ranges(left)} were killed: they had not ended"


def interrupt_ranks(launch: Launch, runner: Runner) -> Told | None:
    """Interrupt the ranks of LAUNCH on all its nodes, and wait up to TIME_S seconds for them.

    None where the nodes gave no answer, so that nothing is known of the ranks.
    """
    try:
        job, nodes = find_running(launch.number, runner)
        script = data.read_script("on-node/interrupt.sh")
        command = ["/bin/sh", "-c", script, "interrupt", job, launch.step, str(TIME_S)]
        done = Client(runner).run_beside(job, nodes, "interrupt", command, TIME_S + START_S)
    except HpcstackError:
        return None

    answers = ANSWER.findall(done.stdout)
    if not answers:
        return None
    interrupted = sum(int(count) for count, _ in answers)
    left = sorted(int(number) for _, numbers in answers for number in numbers.split())
    return Told(interrupted, tuple(left))


def _end_step(launch: Launch, runner: Runner, signal: str = "") -> bool:
    """End the step of LAUNCH, or send it SIGNAL. Return whether Slurm accepted it."""
    return Client(runner).end_step(f"{launch.number}.{launch.step}", signal)
