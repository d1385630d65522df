"""Slurm's jobs: where they write."""

from __future__ import annotations

import re
from pathlib import Path

from hpcstack.errors import InputError, SlurmError
from hpcstack.process import Runner


def logs_of(job: str, runner: Runner) -> list[Path]:
    """The files that JOB's output went to. InputError where Slurm does not know the job any more, or it has none."""
    done = runner.output(["scontrol", "--oneliner", "show", "job", job])
    if done.status and "Invalid job id" in " ".join(done.tail):
        raise InputError(f"Slurm does not know job {job} any more", "name the log itself: hpcstack explain FILE")
    if done.status:
        raise SlurmError(f"scontrol does not answer: {' '.join(done.tail[-1:])}", "try again")
    found = dict.fromkeys(re.findall(r" Std(?:Out|Err)=(/\S+)", done.stdout))
    paths = [path for path in map(Path, found) if path.is_file()]
    if not paths:
        raise InputError(f"job {job} wrote to no file that is there: {', '.join(found) or 'it ran on a terminal'}",
                         "name the log itself: hpcstack explain FILE")  # fmt: skip
    return paths


def states(jobs: list[str], runner: Runner) -> dict[str, str]:
    """{job: its state in Slurm's words} of those that Slurm still knows."""
    if not jobs or not runner.has("squeue"):
        return {}
    out = {}
    if runner.has("sacct"):
        done = runner.output(["sacct", "-nPX", "--format=JobID,State,ExitCode", "--jobs", ",".join(jobs)], timeout=20)
        for line in done.stdout.splitlines() if not done.status else ():
            job, state, code = [*line.split("|"), "", ""][:3]
            out[job.partition("_")[0]] = state if code in ("", "0:0") else f"{state}, exit {code.partition(':')[0]}"
    done = runner.output(["squeue", "--noheader", "--format", "%A|%T", "--jobs", ",".join(jobs)], timeout=20)
    for line in done.stdout.splitlines() if not done.status else ():
        job, _, state = line.partition("|")
        out[job] = state
    return out
