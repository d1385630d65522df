"""The state of a job, as Slurm's programs print it and as people read it. Pure.

Source: https://slurm.schedmd.com/squeue.html, JOB STATE CODES.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass

WAITING = ("PENDING", "CONFIGURING")
FAILED = (
    "FAILED",
    "TIMEOUT",
    "CANCELLED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "BOOT_FAIL",
    "DEADLINE",
    "PREEMPTED",
)
ENDED = ("COMPLETED", *FAILED)


@dataclass(frozen=True)
class JobState:
    """The state of a job: Slurm's WORD, its EXIT status, and who cancelled it.

    EXIT is 0 where it is not known. An empty word is the state of a job that nobody knows.
    """

    word: str = ""
    exit: int = 0
    cancelled_by: str = ""

    @property
    def is_known(self) -> bool:
        """Whether Slurm knows the job."""
        return bool(self.word)

    @property
    def waits(self) -> bool:
        """Whether the job has not started yet."""
        return self.word in WAITING

    @property
    def has_failed(self) -> bool:
        """Whether the job ended, and not well."""
        return self.word in FAILED

    @property
    def has_ended(self) -> bool:
        """Whether the job ended, well or not."""
        return self.word in ENDED

    def __str__(self) -> str:
        text = self.word
        if self.cancelled_by:
            text += f" by {self.cancelled_by}"
        if self.exit:
            text += f", exit {self.exit}"
        return text


UNKNOWN = JobState()


def read_state(said: str, exit_code: str = "") -> JobState:
    """Return the state that sacct, squeue or scontrol SAID.

    EXIT_CODE is their STATUS:SIGNAL, where they have one. sacct says `CANCELLED by 1000`, and marks
    a word that it has cut with a +.
    """
    word, _, by = said.partition(" by ")
    status = exit_code.partition(":")[0]
    return JobState(
        word=word.strip().rstrip("+"),
        exit=int(status) if status.isdigit() else 0,
        cancelled_by=name_user(by) if by.isdigit() else "",
    )


def state_of_status(status: int) -> JobState:
    """Return the state of a job that ended with STATUS."""
    if status:
        return JobState("FAILED", status)
    return JobState("COMPLETED")


def name_user(number: str) -> str:
    """Return the user NUMBER as the reader knows them: `you`, a name, or `user 1000`."""
    try:
        name = pwd.getpwuid(int(number)).pw_name
    except (KeyError, ValueError):
        return f"user {number}"
    if int(number) == os.getuid():
        return "you"
    return name
