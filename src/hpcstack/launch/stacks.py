"""Asks the nodes of a running job what its ranks do, by a step beside it
(launchers/on-node/stacks.sh).
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

ANSWER_S = 60  # what has not answered by then is left out
JOB = re.compile(r"([0-9]+(?:_[0-9]+)?)(?:\.([0-9]+))?")


@dataclass(frozen=True)
class RunningJob:
    """Whose ranks are asked for: a job, perhaps one of its steps."""

    job: str
    step: str
    why: str


def parse_job(job: str) -> RunningJob:
    """What JOB, or nothing, means. InputError for what is no job."""
    if not job:
        newest = find_launch("")
        if not newest.job:
            raise InputError(
                "the newest launch is not a job of Slurm's",
                "hpcstack hang JOB; squeue --me lists yours",
            )
        return RunningJob(
            newest.number or newest.job,
            newest.step,
            f"the newest launch, {newest.stack}, {newest.started}",
        )
    match = JOB.fullmatch(job)
    if not match:
        raise InputError(f"{job!r} is not the number of a job", "squeue --me lists yours")
    return RunningJob(
        match[1], match[2] or "", "every step of it" if not match[2] else f"its step {match[2]}"
    )


def ask_nodes(asked: RunningJob, runner: Runner) -> tuple[str, int]:
    """(what launchers/on-node/stacks.sh says on all nodes of a job, how many nodes did not answer
    in time).

    SlurmError where it does not run, or Slurm refuses.
    """
    number, nodes = find_running(asked.job, runner)
    words = [number, asked.step, lent_spy()]
    done = runner.output(
        [
            *step_beside(number, nodes, "hang"),
            data.read_script("on-node/stacks.sh"),
            "stacks",
            *words,
        ],
        timeout=ANSWER_S + 15,
    )
    if "hpcstack: " not in done.stdout:
        said = " ".join(done.tail[-2:]) or f"exit {done.status}"
        raise SlurmError(
            f"the nodes of job {asked.job} did not answer: {said}", "hpcstack doctor -w NODE"
        )
    answered = set(re.findall(r"^ *(\d+): hpcstack: ", done.stdout, re.MULTILINE))
    return done.stdout, max(0, int(nodes) - len(answered))


def find_running(job: str, runner: Runner) -> tuple[str, str]:
    """(the number of JOB, which may be a task of an array; how many nodes it has).

    SlurmError where it does not run.
    """
    state = runner.output(
        ["squeue", "--noheader", "--jobs", job, "--format", "%A|%T|%D"], timeout=30
    )
    number, _, rest = (state.stdout.splitlines() or [""])[0].partition("|")
    running, _, nodes = rest.partition("|")
    if state.status or running != "RUNNING" or not nodes.isdigit():
        now = f"is {running.lower()}" if running else "is not in the queue"
        raise SlurmError(
            f"job {job} {now}: only a running one can be asked", f"hpcstack explain {job}"
        )
    return number, nodes


def lent_spy() -> str:
    """The py-spy beside this Python, which nodes see where they see hpcstack; empty where there is
    none.
    """
    spy = Path(sys.executable).parent / "py-spy"
    return str(spy) if spy.exists() else ""


def step_beside(job: str, nodes: str, name: str, seconds: int = ANSWER_S) -> list[str]:
    """The line of a step NAME beside those of JOB, one task on each of its NODES: `sh -c`, and then
    the script.

    It ends after so many SECONDS. `timeout` makes it a process group of its own, which a Ctrl-C on
    the terminal does not reach. A node whose task is done soon does not end those of the others
    (--wait).
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
