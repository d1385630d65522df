"""Jobs' states, as Slurm's programs say them."""

from __future__ import annotations

import os

import pytest

from hpcstack.slurm.state import UNKNOWN, JobState, read_state, settle_state, state_of_status


@pytest.mark.parametrize(
    ("said", "code", "state", "shown"),
    [
        ("COMPLETED", "0:0", JobState("COMPLETED"), "COMPLETED"),
        ("FAILED", "3:0", JobState("FAILED", 3), "FAILED, exit 3"),
        ("CANCELLED+", "0:15", JobState("CANCELLED"), "CANCELLED"),
        (f"CANCELLED by {os.getuid()}", "0:0", JobState("CANCELLED", 0, "you"), "CANCELLED by you"),
        (
            "CANCELLED by 4294967294",
            "",
            JobState("CANCELLED", 0, "user 4294967294"),
            "CANCELLED by user 4294967294",
        ),
        ("", "", UNKNOWN, ""),
    ],
)
def test_a_state_is_read_and_shown(said: str, code: str, state: JobState, shown: str) -> None:
    found = read_state(said, code)
    assert found == state
    assert str(found) == shown


@pytest.mark.parametrize(
    ("state", "failed", "ended"),
    [
        (JobState("FAILED", 3), True, True),
        (JobState("CANCELLED", cancelled_by="you"), True, True),
        (JobState("TIMEOUT"), True, True),
        (JobState("COMPLETED"), False, True),
        (JobState("RUNNING"), False, False),
        (UNKNOWN, False, False),
    ],
)
def test_what_a_state_means(state: JobState, failed: bool, ended: bool) -> None:
    assert state.has_failed is failed
    assert state.has_ended is ended


RAN = JobState("COMPLETED")
BAD = JobState("FAILED", 143)
BY_CTRL_C = JobState("CANCELLED", 130, "Ctrl-C")


@pytest.mark.parametrize(
    ("recorded", "of_slurm", "settled"),
    [
        (UNKNOWN, JobState("RUNNING"), JobState("RUNNING")),
        (RAN, UNKNOWN, RAN),
        (RAN, JobState("RUNNING"), RAN),  # it has only just ended
        (BAD, JobState("COMPLETING"), BAD),
        (BAD, JobState("PENDING"), JobState("PENDING")),  # back in the queue
        (BAD, JobState("TIMEOUT"), JobState("TIMEOUT", 143)),
        (BAD, JobState("CANCELLED", 0, "you"), JobState("CANCELLED", 143, "you")),
        (BAD, JobState("FAILED", 15), BAD),  # the rank's status, and not srun's
        (BY_CTRL_C, JobState("CANCELLED", 0, "you"), BY_CTRL_C),
        (JobState("CANCELLED", 143), JobState("CANCELLED", 0, "you"), JobState("CANCELLED", 143, "you")),
        (UNKNOWN, UNKNOWN, UNKNOWN),
    ],
)  # fmt: skip
def test_slurm_and_the_record_of_a_launch_say_one_state(
    recorded: JobState, of_slurm: JobState, settled: JobState
) -> None:
    assert settle_state(recorded, of_slurm) == settled


def test_a_state_that_nobody_here_knows_is_shown_as_slurm_says_it() -> None:
    assert JobState("RESIZING").meaning == "Slurm says RESIZING"
    assert UNKNOWN.meaning == ""


def test_the_state_of_a_status() -> None:
    assert state_of_status(0) == JobState("COMPLETED")
    assert state_of_status(7) == JobState("FAILED", 7)
