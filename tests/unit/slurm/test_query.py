"""What Slurm says of itself, as read; and what is refused because of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstack.core.errors import InputError
from hpcstack.launch import limits
from hpcstack.launch.resources import Resources
from hpcstack.slurm.query import (
    Limits,
    parse_long_options,
    parse_minutes,
    read_partitions,
    read_pmi,
)

SINFO = """\
batch*|up|1-00:00:00|12|64|gpu:h100:8(S:0-1)|ib,h100
batch*|up|1-00:00:00|4|128|gpu:h100:4(S:0-1),tmpdisk:100|ib
long|up|infinite|2|32|(null)|(null)
old|down|30:00|8|16|gpu:4|v100
"""


def test_partitions_with_their_real_limits() -> None:
    assert read_partitions(SINFO) == {
        "batch": Limits("batch", True, True, 1440, 16, 128, 8, frozenset({"ib", "h100"})),
        "long": Limits("long", True, False, 0, 2, 32, 0, frozenset()),
        "old": Limits("old", False, False, 30, 8, 16, 4, frozenset({"v100"})),
    }
    assert read_partitions("nonsense\n|||\n") == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("30", 30), ("30:01", 31), ("1:30:00", 90), ("2-0", 2880), ("1-12:30", 2190), ("1-0:0:1", 1441), ("0", 0),
        ("soon", None), ("1h", None), ("", None),
    ],
)  # fmt: skip
def test_times_as_slurm_writes_them(text: str, found: int | None) -> None:
    assert parse_minutes(text) == found


@given(st.text())
def test_no_answer_of_slurm_is_too_strange(text: str) -> None:
    read_partitions(text)
    parse_long_options(text)
    read_pmi(text)
    parse_minutes(text)


def test_options_and_pmi_types() -> None:
    assert parse_long_options(
        "  -n, --ntasks=ntasks     number\n      --overlap          Force\n"
    ) == {
        "--ntasks",
        "--overlap",
    }
    assert read_pmi("srun: MPI types are...\nsrun: none\nsrun: pmix\nsrun: pmi2\n") == (
        "pmix",
        "pmi2",
    )
    assert read_pmi("MPI plugin types are...\n\tpmix\n\tnone\n\tpmi2\nspecific pmix plugin versions: pmix_v4\n") == (
        "pmix", "pmi2",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("resources", "says", "hint"),
    [
        (Resources(nodes=17), "17 nodes: partition batch has 16", "ask for less"),
        (
            Resources(nodes=3, partition="long"),
            "3 nodes: partition long has 2",
            "--partition batch",
        ),
        (Resources(gpus_per_node=9), "9 GPUs per node", "ask for less"),
        (Resources(gpus_per_node=1, partition="long"), "have none", "--partition batch"),
        (
            Resources(ntasks_per_node=8, cpus_per_task=20),
            "160 CPUs per node (8 x 20)",
            "ask for less",
        ),
        (Resources(time="2-0"), "at most 1440 minutes", "--partition long"),
        (Resources(partition="old"), "is not up", "--partition batch"),
        (Resources(partition="bacth"), "did you mean 'batch'?", "there are: batch"),
        (Resources(constraint="a100"), "their features: h100, ib", "ask for less"),
        (Resources(elastic="20:30"), "20 nodes: partition batch has 16", "ask for less"),
    ],
)
def test_what_no_partition_gives(resources: Resources, says: str, hint: str) -> None:
    with pytest.raises(InputError) as error:
        limits.check_limits(resources, read_partitions(SINFO))
    assert says in error.value.message
    assert hint in error.value.hint


@pytest.mark.parametrize(
    ("resources", "page"),
    [
        (Resources(gpus_per_node=9), "use-four-gpus-of-eight"),
        (Resources(time="2-0"), "stop-before-the-time-limit"),
        (Resources(constraint="a100"), ""),
    ],
)
def test_what_no_partition_gives_names_the_page_about_it(resources: Resources, page: str) -> None:
    with pytest.raises(InputError) as error:
        limits.check_limits(resources, read_partitions(SINFO))
    assert error.value.page == page


def test_what_fits_is_not_refused_and_silence_refuses_nothing() -> None:
    for one in (
        Resources(nodes=16, gpus_per_node=8, time="1-0"),
        Resources(constraint="ib&h100"),
        Resources(elastic="2:99"),
    ):
        limits.check_limits(one, read_partitions(SINFO))
    limits.check_limits(Resources(nodes=999), {})
    with pytest.raises(InputError, match="this allocation"):
        limits.check_allocation(
            Resources(nodes=3), {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "7"}
        )
