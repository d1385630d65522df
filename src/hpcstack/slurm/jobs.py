"""Batch jobs: submitted, asked about and cancelled in one place.

In: a script's path. Out: the job's number.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from hpcstack.core.errors import HpcstackError, SlurmError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hpcstack.core.process import Runner

KEPT = ("SLURM_CONF", "SLURM_EXIT_ERROR", "SLURM_CLUSTERS", "SLURM_JWT")
OF_A_LAUNCH = ("HPCSTACK_END", "HPCSTACK_END_JOB", "HPCSTACK_GRACE")


def submit_job(
    script: Path, runner: Runner, *, env: Mapping[str, str] | None = None, hint: str = ""
) -> str:
    """The number of the job that SCRIPT became. It takes nothing over from a job that this shell
    may be in.

    SlurmError with sbatch's own words where it is refused; HINT says what to type then.
    """
    runner.which("sbatch")
    done = runner.output(
        [*_outside_jobs(), "sbatch", "--parsable", str(script)], env=dict(env or {})
    )
    job = done.stdout.strip().partition(";")[0]
    if done.status or not job.isdigit():
        said = " ".join(done.tail[-2:]) or done.stdout.strip()[:300]
        raise SlurmError(f"sbatch refused: {said}", hint or f"the script is {script}")
    return job


def find_refusal(script: Path, runner: Runner) -> str:
    """What sbatch would say against SCRIPT, asked without a job; empty where it would take it."""
    done = runner.output([*_outside_jobs(), "sbatch", "--test-only", str(script)])
    return f"sbatch would refuse it: {' '.join(done.tail[-2:])}" if done.status else ""


def cancel_jobs(jobs: Sequence[str], runner: Runner) -> None:
    """Take JOBS back. Nothing is said of one that Slurm no longer knows."""
    if jobs:
        with contextlib.suppress(HpcstackError, OSError):
            runner.output(["scancel", *jobs])


def _outside_jobs() -> list[str]:
    """`env` without the job that this shell may be in."""
    inherited = [name for name in os.environ if name.startswith("SLURM_") and name not in KEPT]
    inherited += [name for name in OF_A_LAUNCH if name in os.environ]
    return ["env", *(word for name in inherited for word in ("-u", name))]
