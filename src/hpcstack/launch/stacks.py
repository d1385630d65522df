"""Ask the nodes of a running job what its ranks do, by a step of its own beside the job's.

The step runs launchers/on-node/stacks.sh on every node.
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
    step = step_beside(number, nodes, "hang")
    done = runner.output(
        [*step, script, "stacks", number, asked.step, lent_spy()], timeout=ANSWER_S + 15
    )
    if "hpcstack: " not in done.stdout:
        said = " ".join(done.tail[-2:]) or f"exit {done.status}"
        raise SlurmError(
            f"the nodes of job {asked.job} did not answer: {said}", "hpcstack doctor -w NODE"
        )
    answered = set(re.findall(r"^ *(\d+): hpcstack: ", done.stdout, re.MULTILINE))
    return done.stdout, max(0, int(nodes) - len(answered))


def find_running(job: str, runner: Runner) -> tuple[str, str]:
    """Return (the number of JOB, how many nodes it has), both as Slurm prints them.

    JOB may be NUMBER_TASK, a task of an array: its own number is another one. Raise SlurmError
    where it does not run.
    """
    state = runner.output(
        ["squeue", "--noheader", "--jobs", job, "--format", "%A|%T|%D"], timeout=30
    )
    number, _, rest = (state.stdout.splitlines() or [""])[0].partition("|")
    running, _, nodes = rest.partition("|")
    if state.status or running != "RUNNING" or not nodes.isdigit():
        now = f"is {running.lower()}" if running else "is not in the queue"
        raise SlurmError(
            f"job {job} {now}: only a running job can be asked", f"hpcstack explain {job}"
        )
    return number, nodes


def lent_spy() -> str:
    """Return the py-spy beside this Python; empty where there is none.

    Nodes that see hpcstack see it, too.
    """
    spy = Path(sys.executable).parent / "py-spy"
    return str(spy) if spy.exists() else ""


def step_beside(job: str, nodes: str, name: str, seconds: int = ANSWER_S) -> list[str]:
    """Return the line of a step NAME beside those of JOB, with one task on each of its NODES.

    The line ends with `sh -c`; the caller appends the script and its arguments. The step ends after
    so many SECONDS. `timeout` makes it a process group of its own, which a Ctrl-C on the terminal
    does not reach. A task that is done early does not end those of the other nodes (--wait=0).
    """
    return [
        "timeout",
        "--kill-after=5",
        str(seconds),
        "srun",
        f"--jobid={job}",
        "--overlap",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        "--cpus-per-task=1",
        "--mem=0",
        "--cpu-bind=none",
        "--input=none",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--label",
        f"--job-name={name}",
        "/bin/sh",
        "-c",
    ]
