"""Batch jobs: submit, ask about and cancel them in one place.

A script's path becomes the job's number.
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

# Slurm's variables that say which cluster is meant, and how; the others are those of a job.
KEPT = ("SLURM_CONF", "SLURM_EXIT_ERROR", "SLURM_CLUSTERS", "SLURM_JWT")
# What hpcstack launch tells the ranks of its own job.
OF_A_LAUNCH = ("HPCSTACK_END", "HPCSTACK_END_JOB", "HPCSTACK_GRACE")


def submit_job(
    script: Path, runner: Runner, *, env: Mapping[str, str] | None = None, hint: str = ""
) -> str:
    """Submit SCRIPT, and return the number of its job.

    The job takes nothing over from a job that this shell may be in. Raise SlurmError with sbatch's
    own words where it refuses; HINT says what to type then.
    """
    runner.which("sbatch")
    argv = [*_outside_jobs(), "sbatch", "--parsable", str(script)]
    done = runner.output(argv, env=dict(env or {}))
    job = done.stdout.strip().partition(";")[0]  # NUMBER;CLUSTER in a federation
    if done.status or not job.isdigit():
        said = " ".join(done.tail[-2:]) or done.stdout.strip()[:300]
        raise SlurmError(f"sbatch refused: {said}", hint or f"the script is {script}")
    return job


def find_refusal(script: Path, runner: Runner) -> str:
    """Return what sbatch would say against SCRIPT, asked without a job; empty where it takes it."""
    done = runner.output([*_outside_jobs(), "sbatch", "--test-only", str(script)])
    if not done.status:
        return ""
    return f"sbatch would refuse it: {' '.join(done.tail[-2:])}"


def cancel_jobs(jobs: Sequence[str], runner: Runner) -> None:
    """Cancel JOBS. Nothing is said where Slurm no longer knows one, or cannot be asked."""
    if jobs:
        with contextlib.suppress(HpcstackError, OSError):
            runner.output(["scancel", *jobs])


def _outside_jobs() -> list[str]:
    """Return a prefix of a command line, by `env`, that hides the job this shell may be in."""
    inherited = [name for name in os.environ if name.startswith("SLURM_") and name not in KEPT]
    inherited += [name for name in OF_A_LAUNCH if name in os.environ]
    return ["env", *(word for name in inherited for word in ("-u", name))]
