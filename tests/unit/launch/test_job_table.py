"""One table of the tasks of a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcstack.core.errors import InputError
from hpcstack.core.progress import Progress
from hpcstack.launch.job_table import compile_pattern, make_part_rows
from hpcstack.launch.jobs import JobPart
from hpcstack.slurm.state import UNKNOWN, JobState

LOGS = {
    0: "epoch 1 loss=0.9 acc=1\nepoch 2 loss=0.5 acc=2\nhpcstack: bye\n\n",
    1: "[rank0]: loss=0.7 acc=3\nslurmstepd-n1: error: *** JOB 7 CANCELLED\n",
    2: "nothing of it\n",
}


def make_parts(folder: Path) -> list[JobPart]:
    parts = [JobPart("7_3", JobState("PENDING"))]
    for task, text in LOGS.items():
        log = folder / f"{task}.out"
        log.write_text(text)
        state = UNKNOWN if task == 2 else JobState("COMPLETED")
        parts.append(JobPart(f"7_{task}", state, files=(log,), elapsed="00:01:00", nodes="n1"))
    return parts


def test_each_row_has_the_programs_last_words(tmp_path: Path) -> None:
    rows = make_part_rows(make_parts(tmp_path), None, Progress())
    assert [row.said for row in rows] == [
        "", "epoch 2 loss=0.5 acc=2", "loss=0.7 acc=3", "nothing of it",
    ]  # fmt: skip
    assert [row.state for row in rows] == ["PENDING", "COMPLETED", "COMPLETED", "?"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (r"loss=(\S+)", [(), ("0.5",), ("0.7",), ()]),
        (r"loss=(\S+) acc=(\d)", [(), ("0.5", "2"), ("0.7", "3"), ()]),
        (r"loss=\S+", [(), ("loss=0.5",), ("loss=0.7",), ()]),
    ],
)
def test_what_is_looked_for_is_that_of_the_last_line(
    tmp_path: Path, pattern: str, found: list[tuple[str, ...]]
) -> None:
    rows = make_part_rows(make_parts(tmp_path), compile_pattern(pattern), Progress())
    assert [row.found for row in rows] == found


def test_a_wrong_pattern_is_refused() -> None:
    with pytest.raises(InputError, match="--match"):
        compile_pattern("(")
