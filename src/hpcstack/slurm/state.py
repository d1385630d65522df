"""The state of a job, as Slurm's programs print it and as people read it. Pure.

Source: https://slurm.schedmd.com/squeue.html, JOB STATE CODES.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass, replace

# What each state means of a job. What is not listed is shown in Slurm's word alone.
MEANINGS = {
    "PENDING": "it waits in the queue",
    "CONFIGURING": "its nodes are being made ready",
    "REQUEUED": "it is put back into the queue",
    "REQUEUE_HOLD": "it is put back into the queue, and held there",
    "SPECIAL_EXIT": "it is put back into the queue, and held there",
    "RUNNING": "it runs",
    "SUSPENDED": "it is suspended",
    "STOPPED": "it is stopped",
    "COMPLETING": "it is ending",
    "COMPLETED": "it ended with 0",
    "FAILED": "it failed",
    "CANCELLED": "it was cancelled",
    "TIMEOUT": "the time limit was reached",
    "PREEMPTED": "it was preempted",
    "NODE_FAIL": "a node failed",
    "OUT_OF_MEMORY": "the job's memory limit was reached",
    "BOOT_FAIL": "a node did not start",
    "DEADLINE": "its deadline was reached",
}
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")
# Ends that no program of the job's has chosen
FROM_OUTSIDE = (
    "CANCELLED",
    "TIMEOUT",
    "PREEMPTED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "BOOT_FAIL",
    "DEADLINE",
)
FAILED = ("FAILED", *FROM_OUTSIDE)
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

    @property
    def is_from_outside(self) -> bool:
        """Whether something other than the job's own programs ended it."""
        return self.word in FROM_OUTSIDE

    @property
    def meaning(self) -> str:
        """What the state means in words; empty where the job is not known."""
        if not self.word:
            return ""
        meaning = MEANINGS.get(self.word, f"Slurm says {self.word}")
        if self.cancelled_by:
            meaning += f" by {self.cancelled_by}"
        return meaning

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


def settle_state(recorded: JobState, of_slurm: JobState) -> JobState:
    """Return the state of a launch that is a job of its own, by its own record and by Slurm.

    The record is there first, and stays when Slurm has forgotten the job. But only Slurm knows that
    the job is back in the queue, and often it alone knows what ended it from outside.
    """
    if not recorded.is_known or of_slurm.waits:
        return of_slurm if of_slurm.is_known else recorded
    if recorded.word == "FAILED" and of_slurm.is_from_outside:
        return replace(of_slurm, exit=recorded.exit)
    if recorded.word == of_slurm.word:
        return replace(recorded, cancelled_by=recorded.cancelled_by or of_slurm.cancelled_by)
    return recorded


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
