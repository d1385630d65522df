"""The number of a job, in every form that Slurm's programs write and take."""

from __future__ import annotations

import pytest

from hpcstack.slurm.job_id import JobId, parse_job_id


@pytest.mark.parametrize(
    ("text", "expected", "whole"),
    [
        ("7", JobId("7"), "7"),
        ("7_3", JobId("7", "3"), "7_3"),
        ("7+1", JobId("7", part="1"), "7+1"),
        ("7.0", JobId("7", step="0"), "7"),
        ("7_3.batch", JobId("7", "3", step="batch"), "7_3"),
        ("7+1.extern", JobId("7", part="1", step="extern"), "7+1"),
    ],
)
def test_its_forms(text: str, expected: JobId, whole: str) -> None:
    found = parse_job_id(text)
    assert found == expected
    assert found
    assert found.without_step == whole


@pytest.mark.parametrize("text", ["", "x", "7_", "7_[1-3]", "7+", "7.x", "-7", "7 8", "7;8", "٧"])
def test_what_is_none(text: str) -> None:
    assert parse_job_id(text) is None
