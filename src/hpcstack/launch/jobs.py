"""Slurm's jobs: where they write."""

from __future__ import annotations

import os
import pwd
import re
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError, SlurmError
from hpcstack.launch import stderr
from hpcstack.launch.record import find

if TYPE_CHECKING:
    from hpcstack.core.process import Runner


STARTED = re.compile(r" JobState=RUNNING .*? RunTime=00:00:\d\d ")  # its file is made by the node, and seen here later


class NotStarted(InputError):
    """A job that waits in the queue, or has come out of it within the minute, has written nothing yet."""


def logs_of(job: str, runner: Runner) -> list[Path]:
    """The files that JOB's output went to. InputError where Slurm does not know the job any more, or it has none."""
    if not re.match(r"\d", job) and not _kept(job):
        raise InputError(f"{job!r} is not the number of a job", "hpcstack jobs lists yours")
    done = runner.output(["scontrol", "--oneliner", "show", "job", job])
    if done.status and (kept := _kept(job)):
        return kept
    if done.status and "Invalid job id" in " ".join(done.tail):
        raise InputError(f"Slurm no longer knows job {job}", "name the log itself: hpcstack explain FILE")
    if done.status:
        raise SlurmError(f"scontrol does not answer: {' '.join(done.tail[-1:])}", "try again")
    found = dict.fromkeys(re.findall(r" Std(?:Out|Err)=(/\S+)", done.stdout))
    if waits := re.search(r" JobState=(?:PENDING|CONFIGURING) Reason=(\S+)", done.stdout):
        where = ", ".join(found) or "a terminal"
        said = f"job {job} has not started yet ({waits[1]}); it will write to {where}"
        raise NotStarted(said, f"squeue --jobs {job}")
    paths = [path for path in map(Path, found) if path.is_file()]
    if not paths and found and STARTED.search(done.stdout):
        said = f"job {job} has only just started and has written nothing yet; it will write to {', '.join(found)}"
        raise NotStarted(said, f"hpcstack logs {job}, in a moment")
    if not paths:
        raise InputError(f"job {job} wrote to no file that exists: {', '.join(found) or 'it ran on a terminal'}",
                         "name the log itself: hpcstack explain FILE")  # fmt: skip
    return paths


def _kept(job: str) -> list[Path]:
    """What a launch of ours wrote, where Slurm no longer knows JOB: its output, or its standard error."""
    try:
        launch = find(job)
    except InputError:
        return []
    output = launch.folder / "output"
    named = [Path(output.read_text(encoding="utf-8").strip())] if output.is_file() else []
    return [path for path in (*named, launch.folder / stderr.NAME) if path.is_file()]


def ended_how(job: str, runner: Runner) -> str:
    """How Slurm says that JOB ended, where that was not the program's own doing; empty where Slurm does not know."""
    if not runner.has("sacct"):
        return ""
    done = runner.output(
        ["sacct", "-nPX", "--format=State,Reason,Elapsed,Timelimit,NodeList", "--jobs", job], timeout=20
    )
    for line in done.stdout.splitlines() if not done.status else ():
        state, reason, elapsed, limit, nodes = [*line.split("|"), "", "", "", "", ""][:5]
        word, _, by = state.partition(" ")
        if word == "CANCELLED":
            return "it was cancelled" + (f" by {_user(by.removeprefix('by '))}" if by else "") + f", after {elapsed}"
        if word == "TIMEOUT":
            return f"the time limit was reached: {limit}"
        if word == "NODE_FAIL":
            return f"a node failed, of {nodes}"
        if word == "OUT_OF_MEMORY":
            return f"the job's memory limit was reached, on one of {nodes}"
        if word in ("PREEMPTED", "BOOT_FAIL", "DEADLINE"):
            return f"Slurm ended it: {word}{f', {reason}' if reason not in ('', 'None') else ''}"
    return ""


def _user(number: str) -> str:
    try:
        name = pwd.getpwuid(int(number)).pw_name
    except (KeyError, ValueError):
        return f"user {number}"
    return "you" if int(number) == os.getuid() else name


def states(jobs: list[str], runner: Runner) -> dict[str, str]:
    """{job: its state in Slurm's words} of those that Slurm still knows."""
    if not jobs or not runner.has("squeue"):
        return {}
    out = {}
    if runner.has("sacct"):
        done = runner.output(["sacct", "-nPX", "--format=JobID,State,ExitCode", "--jobs", ",".join(jobs)], timeout=20)
        for line in done.stdout.splitlines() if not done.status else ():
            job, state, code = [*line.split("|"), "", ""][:3]
            word, _, by = state.partition(" by ")
            state = f"{word} by {_user(by)}" if by.isdigit() else state
            said = state if code.partition(":")[0] in ("", "0") else f"{state}, exit {code.partition(':')[0]}"
            out[job] = said
            out.setdefault(job.partition("_")[0], said)
    done = runner.output(["squeue", "--noheader", "--format", "%i|%T", "--jobs", ",".join(jobs)], timeout=20)
    for line in done.stdout.splitlines() if not done.status else ():
        job, _, state = line.partition("|")
        out[job] = out[job.partition("_")[0]] = state
    return out
