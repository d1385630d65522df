"""What is made of a restart; ranks that die and come back need torch (ci/gpu)."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcstack_smoke.result import ERROR, FAIL, PASS, write_document
from hpcstack_smoke.training.restart import DIES_AT, judge_restart


def leave(folder: Path, restarts: int, resumed: int, error: float) -> None:
    found = {"restarts": restarts, "resumed": resumed, "error": error}
    write_document(str(folder), "restart.json", found)


@pytest.mark.parametrize(
    ("restarts", "resumed", "error", "status"),
    [
        (1, DIES_AT, 0.0, PASS),
        (2, 1, 1e-5, PASS),
        (0, DIES_AT, 0.0, FAIL),  # nobody died
        (1, 0, 0.0, FAIL),  # from the beginning, not from the checkpoint
        (1, DIES_AT, 1e-2, FAIL),  # other losses than those of an undisturbed run
    ],
)
def test_one_restart_that_goes_on_where_the_checkpoint_is(
    tmp_path: Path, restarts: int, resumed: int, error: float, status: str
) -> None:
    leave(tmp_path, restarts, resumed, error)
    assert judge_restart(str(tmp_path), 0).status == status


def test_a_torchrun_that_gave_up_is_an_error(tmp_path: Path) -> None:
    leave(tmp_path, 1, DIES_AT, 0.0)
    assert judge_restart(str(tmp_path), 1).status == ERROR


def test_ranks_that_left_nothing_are_an_error(tmp_path: Path) -> None:
    assert judge_restart(str(tmp_path), 0).status == ERROR
