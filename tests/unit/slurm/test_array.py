"""The option --array, as Slurm has it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstack.slurm.array import count_tasks, join_tasks, read_tasks


@pytest.mark.parametrize(
    ("said", "tasks"),
    [
        ("5", [5]),
        ("1-9:2", [1, 3, 5, 7, 9]),
        ("[1-3,7%2]", [1, 2, 3, 7]),
        ("5-7%2", [5, 6, 7]),
    ],
)
def test_the_tasks_of_an_option(said: str, tasks: list[int]) -> None:
    assert [task for one in read_tasks(said) or () for task in one] == tasks
    assert count_tasks(said) == max(len(tasks), 1)


@pytest.mark.parametrize("said", ["", "x", "1-", "1,", "-3", "1-2:x", "3-1", "3%x"])
def test_what_is_not_understood_is_none(said: str) -> None:
    assert read_tasks(said) is None
    assert count_tasks(said) == 1


@given(st.sets(st.integers(0, 300), min_size=1))
def test_what_is_joined_is_read_again(tasks: set[int]) -> None:
    joined = read_tasks(join_tasks(tasks))
    assert joined is not None
    assert [task for one in joined for task in one] == sorted(tasks)
