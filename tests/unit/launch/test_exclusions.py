"""Which options of a launch exclude each other: each row, and no row for options that are not there."""

from __future__ import annotations

import pytest

from hpcstack.core.errors import InputError
from hpcstack.launch.exclusions import (
    EXCLUSIONS,
    NODE_RANGE,
    OF_SLURM,
    check_exclusions,
    list_given,
)
from hpcstack.launch.request import LaunchRequest
from hpcstack.launch.resources import Resources
from hpcstack.slurm.options import OPTIONS, SlurmOptions


@pytest.mark.parametrize(
    ("option", "other"), [(one.option, other) for one in EXCLUSIONS for other in one.others]
)
def test_two_that_exclude_each_other_are_refused(option: str, other: str) -> None:
    with pytest.raises(InputError, match=f"{option} and {other} exclude each other: ") as refused:
        check_exclusions({option, other, "--batch"})
    assert refused.value.page
    check_exclusions({option})
    check_exclusions({other})


def test_every_option_of_a_row_can_be_given() -> None:
    extra = SlurmOptions.parse(("--pty", "--no-requeue", "--output=x", "--error=y"))
    resources = Resources(extra=extra, elastic="1:2", restarts=1, nodelist="n1", most_nodes=2)
    all_of_them = LaunchRequest(
        ("a",), resources, stage="copy", stage_in=("a:b",), grace=1, watchdog=1, debug=0, spare=1,
        requeue=("x",), slurm=True, label=True,
    )  # fmt: skip
    given = list_given(all_of_them)
    named = {one.option for one in EXCLUSIONS} | {
        other for one in EXCLUSIONS for other in one.others
    }
    assert named <= given
    assert {*OF_SLURM} - {"--batch"} <= given
    assert all(
        option in OPTIONS
        for option in given
        - {*OF_SLURM, "--debug", "--elastic", "--restarts", "--label", NODE_RANGE}
    )
    batch = LaunchRequest(("a",), resources, batch=True)
    assert not {"--output", "--error"} & list_given(batch), "they name the job's own files"
    assert list_given(LaunchRequest(("a",), stage="none")) == set()
