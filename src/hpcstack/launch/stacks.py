"""Ask the nodes of a running job what its ranks do, by a step of its own beside the job's.

The step runs launchers/on-node/stacks.sh on every node.

Tested in tests/unit/launch/test_hang.py.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core import data
from hpcstack.core.errors import InputError, SlurmError
from hpcstack.launch.record import find_launch
from hpcstack.slurm.client import Client

if TYPE_CHECKING:
    from hpcstack.core.process import Runner

ANSWER_S = 60  # how long the nodes have to answer
JOB = re.compile(r"([0-9]+(?:_[0-9]+)?)(?:\.([0-9]+))?")  # NUMBER or NUMBER_TASK, perhaps .STEP


@dataclass(frozen=True)
class RunningJob:
    """A job whose ranks are asked for, or one step of it; `why` says in words which it is."""

    job: str
    step: str
    why: str


def parse_job(job: str) -> RunningJob:
    """Return the job that JOB means: NUMBER or NUMBER.STEP, or the newest launch where it is empty.

    Raise InputError for anything else.
    """
    if not job:
        newest = find_launch("")
        if not newest.job:
            raise InputError(
                "the newest launch is not a job of Slurm's",
                "hpcstack hang JOB; squeue --me lists yours",
                page="find-a-hang",
            )
        why = f"the newest launch, {newest.stack}, {newest.started}"
        return RunningJob(newest.number or newest.job, newest.step, why)

    match = JOB.fullmatch(job)
    if not match:
        raise InputError(f"{job!r} is not the number of a job", "squeue --me lists yours")
    number, step = match[1], match[2] or ""
    why = f"its step {step}" if step else "every step of it"
    return RunningJob(number, step, why)


def ask_nodes(asked: RunningJob, runner: Runner) -> tuple[str, int]:
    """Return (what stacks.sh printed on all nodes of a job, how many nodes did not answer in time).

    Raise SlurmError where the job does not run, or no node answers.
    """
    number, nodes = find_running(asked.job, runner)
    script = data.read_script("on-node/stacks.sh")
    command = ["/bin/sh", "-c", script, "stacks", number, asked.step, find_lent_spy()]
    done = Client(runner).run_beside(number, nodes, "hang", command, ANSWER_S)
    if "hpcstack: " not in done.stdout:
        said = " ".join(done.tail[-2:]) or f"exit {done.status}"
        raise SlurmError(
            f"the nodes of job {asked.job} did not answer: {said}",
            "hpcstack doctor -w NODE",
            page="check-a-machine",
        )
    answered = set(re.findall(r"^ *(\d+): hpcstack: ", done.stdout, re.MULTILINE))
    return done.stdout, max(0, nodes - len(answered))


def find_running(job: str, runner: Runner) -> tuple[str, int]:
    """Return (the number of JOB, how many nodes it has).

    JOB may be NUMBER_TASK, a task of an array: its own number is another one. Raise SlurmError
    where it does not run.
    """
    queued = Client(runner).query_queue([job])
    if queued is None:
        raise SlurmError("squeue does not answer", "hpcstack doctor")
    running = [one for one in queued if one.state.word == "RUNNING"]
    if not running:
        now = f"is {queued[0].state.word.lower()}" if queued else "is not in the queue"
        raise SlurmError(
            f"job {job} {now}: only a running job can be asked",
            f"hpcstack explain {job}",
            page="find-a-hang",
        )
    return running[0].number, running[0].nodes


def find_lent_spy() -> str:
    """Return the py-spy beside this Python; empty where there is none.

    Nodes that see hpcstack see it, too.
    """
    spy = Path(sys.executable).parent / "py-spy"
    return str(spy) if spy.exists() else ""
