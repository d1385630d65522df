"""The number of a job as people and Slurm's programs write it. Pure.

Forms: 7 a job, 7_3 a task of an array, 7+1 a part of a heterogeneous job, 7.0 or 7.batch a step of
one of these (https://slurm.schedmd.com/sacct.html, --jobs;
https://slurm.schedmd.com/heterogeneous_jobs.html).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpcstack.core.errors import InputError

FORM = re.compile(
    r"(?P<job>[0-9]{1,10})(?:_(?P<task>[0-9]{1,10}))?(?:\+(?P<part>[0-9]{1,4}))?"
    r"(?:\.(?P<step>[0-9]{1,10}|batch|extern|interactive))?"
)


@dataclass(frozen=True)
class JobId:
    """A job, of an array its `task`, of a heterogeneous job its `part`; and a `step` of it."""

    job: str
    task: str = ""
    part: str = ""
    step: str = ""

    @property
    def without_step(self) -> str:
        """The job itself, as it is written: 7, 7_3 or 7+1."""
        task = f"_{self.task}" if self.task else ""
        part = f"+{self.part}" if self.part else ""
        return f"{self.job}{task}{part}"


def read_job_id(text: str) -> JobId:
    """Return the job, or the step of one, that TEXT names. Raise InputError where it names none."""
    found = parse_job_id(text)
    if not found:
        raise InputError(f"{text!r} is not the number of a job", "squeue --me lists yours")
    return found


def parse_job_id(text: str) -> JobId | None:
    """Return the job, or the step of one, that TEXT names; None where it names none."""
    found = FORM.fullmatch(text)
    if not found:
        return None
    return JobId(**{name: value or "" for name, value in found.groupdict().items()})
