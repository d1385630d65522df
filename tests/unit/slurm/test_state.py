"""Jobs' states, as Slurm's programs say them."""

from __future__ import annotations

import os

import pytest

from hpcstack.slurm.state import UNKNOWN, JobState, read_state, state_of_status


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


def test_the_state_of_a_status() -> None:
    assert state_of_status(0) == JobState("COMPLETED")
    assert state_of_status(7) == JobState("FAILED", 7)
