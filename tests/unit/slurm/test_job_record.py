"""Records of `scontrol show job`, as several releases of Slurm print them."""

from __future__ import annotations

import pytest

from hpcstack.slurm.job_record import parse_job_record, read_job_records


def test_a_command_line_of_two_lines_is_one_record() -> None:
    """Slurm 25.11 and newer print SubmitLine as it was typed."""
    said = "JobId=7 SubmitLine=sbatch --wrap a\nb WorkDir=/w StdOut=/w/o\nJobId=8 StdOut=/w/p\n"
    first, second = read_job_records(said)
    assert (first.name, first.fields["WorkDir"], first.fields["StdOut"]) == ("7", "/w", "/w/o")
    assert second.name == "8"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("JobId=41 ArrayJobId=40 ArrayTaskId=3 JobState=RUNNING", "40_3"),
        ("JobId=41 ArrayJobId=40 ArrayTaskId=5-20%2 JobState=PENDING", "40_5-20%2"),
        ("JobId=124 HetJobId=123 HetJobOffset=1 HetJobIdSet=123-124 JobName=x", "123+1"),
        ("JobId=7 JobName=JobId=8 Comment=JobId=9", "7"),
    ],
)
def test_whose_record_it_is(line: str, name: str) -> None:
    record = parse_job_record(line)
    assert record
    assert record.name == name


def test_what_slurm_shows_as_nothing_is_left_out() -> None:
    record = parse_job_record("JobId=7 ReqNodeList=(null) ExcNodeList= NodeList=n[1-2]")
    assert record
    assert record.fields == {"JobId": "7", "NodeList": "n[1-2]"}
    assert parse_job_record("slurm_load_jobs error: Invalid job id specified") is None
