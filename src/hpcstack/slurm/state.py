"""The state of a job, as Slurm's programs say it and as people read it. Pure.

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
    """A job's state in Slurm's WORD; the EXIT status, where that is known and not 0; who cancelled
    it, where one did.

    An empty word is the state of a job of which nobody knows.
    """

    word: str = ""
    exit: int = 0
    cancelled_by: str = ""

    @property
    def is_known(self) -> bool:
        return bool(self.word)

    @property
    def waits(self) -> bool:
        return self.word in WAITING

    @property
    def has_failed(self) -> bool:
        return self.word in FAILED

    @property
    def has_ended(self) -> bool:
        return self.word in ENDED

    def __str__(self) -> str:
        said = f"{self.word} by {self.cancelled_by}" if self.cancelled_by else self.word
        return f"{said}, exit {self.exit}" if self.exit else said


UNKNOWN = JobState()


def read_state(said: str, exit_code: str = "") -> JobState:
    """Return the state that sacct, squeue or scontrol SAID, with their STATUS:SIGNAL where they
    have one.

    sacct says `CANCELLED by 1000`, and marks with a + a word that it has cut.
    """
    word, _, by = said.partition(" by ")
    status = exit_code.partition(":")[0]
    return JobState(
        word.strip().rstrip("+"),
        int(status) if status.isdigit() else 0,
        name_user(by) if by.isdigit() else "",
    )


def state_of_status(status: int) -> JobState:
    """Return the state of a job that ended with STATUS."""
    return JobState("FAILED", status) if status else JobState("COMPLETED")


def name_user(number: str) -> str:
    """Return the name of the user with NUMBER, as the caller reads it: `you`, a name, or `user
    1000`.
    """
    try:
        name = pwd.getpwuid(int(number)).pw_name
    except (KeyError, ValueError):
        return f"user {number}"
    return "you" if int(number) == os.getuid() else name
