"""GPUs in Slurm's words: every form that srun(1), sinfo(1) and scontrol(1) have for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstack.slurm.gpus import (
    Gres,
    GresError,
    Per,
    count_gpus,
    count_gpus_asked,
    count_job_gpus,
    list_requests,
    list_requests_of_job,
    list_requests_of_variables,
    read_gres,
    read_tres,
)
from hpcstack.slurm.options import GivenOption


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu", [Gres("gpu")]),
        ("gpu:4", [Gres("gpu", count=4)]),
        ("gpu:h100", [Gres("gpu", "h100")]),
        ("gpu:3090:2", [Gres("gpu", "3090", 2)]),
        ("gpu:3090", [Gres("gpu", count=3090)]),  # as Slurm reads it
        ("gpu:2080ti:2", [Gres("gpu", "2080ti", 2)]),
        ("gpu:nvidia_a100-sxm4-80gb:2", [Gres("gpu", "nvidia_a100-sxm4-80gb", 2)]),
        ("gpu:1g.10gb:2", [Gres("gpu", "1g.10gb", 2)]),
        ("gres/gpu:h100=8", [Gres("gpu", "h100", 8)]),
        ("gres:gpu:4", [Gres("gpu", count=4)]),  # Slurm 22.05
        ("gpu:h100:8(S:0-1)", [Gres("gpu", "h100", 8)]),
        ("gpu:8(S:0,2-3),tmpfs:1", [Gres("gpu", count=8), Gres("tmpfs")]),
        ("gpu:h100:4(IDX:0-3)", [Gres("gpu", "h100", 4)]),
        ("craynetwork:no_consume:4,gpu:1", [Gres("craynetwork", count=4), Gres("gpu")]),
        ("shard:4", [Gres("shard", count=4)]),
        ("tmp:100G", [Gres("tmp", count=100 << 30)]),
        ("none", []),
        ("NONE", []),
        ("(null)", []),
        ("N/A", []),
        ("", []),
    ],
)
def test_a_list_of_generic_resources(text: str, expected: list[Gres]) -> None:
    assert list(read_gres(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "gpu:a:b:c",
        "gpu:h100:",
        "gpu:h100:x",
        ":4",
        "gpu,,tmp",
        "gpu:4;rm -rf",
        "3",
        "gpu:-1",
        "gpu:1.5",
        "gpu:+4",
        "gpu:8000000000000000",
    ],
)
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(GresError):
        read_gres(text)
    assert count_gpus(text) is None


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = read_gres(text)
    except GresError:
        return
    assert all(one.name and one.count >= 0 for one in found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cpu=4,mem=8G,gres/gpu=1", [Gres("gpu")]),
        ("cpu=192,node=2,gres/gpu=8,gres/gpu:h100=8", [Gres("gpu", "h100", 8)]),
        ("gres/gpu:a100=4,gres/gpu:h100=4,gres/gpu=8", [Gres("gpu", "a100", 4), Gres("gpu", "h100", 4)]),
        ("cpu:4,gres/gpu:1", [Gres("gpu")]),
        ("cpu=4,license/matlab=1", []),
    ],
)  # fmt: skip
def test_the_generic_resources_of_all_that_slurm_counts(text: str, expected: list[Gres]) -> None:
    assert list(read_tres(text)) == expected


@pytest.mark.parametrize(
    ("type_name", "is_slice"),
    [("1g.10gb", True), ("a100_1g.5gb", True), ("nvidia_h100_80gb_hbm3_4g.40gb", True),
     ("1g.10gb+me", True), ("1g.24gb-me", True), ("1g.10gb_0", True), ("a100_1g_5gb", True),
     ("1c.2g.10gb", True), ("h100", False), ("nvidia_a100-sxm4-80gb", False)],
)  # fmt: skip
def test_slices_are_known_by_their_type(type_name: str, is_slice: bool) -> None:
    assert Gres("gpu", type_name).is_slice is is_slice


ASKED = [
    # option, value, nodes, tasks, GPUs of a node: None where nobody knows, "nothing" for no word of GPUs
    ("--gpus-per-node", "4", 2, 1, 4),
    ("--gpus-per-node", "h100:4", 2, 1, 4),
    ("--gpus-per-node", "0", 1, 1, 0),
    ("--gres", "gpu:3090:2", 1, 1, 2),
    ("--gres", "gpu:h100", 1, 1, 1),
    ("--gres", "gpu", 1, 1, 1),
    ("--gres", "gpu:a100:2,gpu:h100:2", 1, 1, 4),
    ("--gres", "none", 1, 1, 0),
    ("--gres", "gpu:0", 1, 1, 0),
    ("--gres", "shard:4", 1, 1, 1),
    ("--gres", "mps:50", 1, 1, 1),
    ("--gres", "tmp:100G", 1, 1, "nothing"),
    ("--gres", "gpu:a:b:c", 1, 1, None),
    ("--gpus-per-task", "H100:1", 1, 4, 4),
    ("--gpus-per-task", "2", 1, 0, None),
    ("--tres-per-task", "cpu=4,gres/gpu=1", 1, 2, 2),
    ("--tres-per-task", "cpu=4", 1, 2, "nothing"),
    ("--gpus", "8", 2, 1, 4),
    ("--gpus", "volta:3,kepler:5", 2, 1, 4),
    ("--gpus", "7", 2, 1, None),
    ("--gpus-per-socket", "2", 1, 1, None),
    ("--gpus-per-node", "h100", 1, 1, 1),
]


@pytest.mark.parametrize(("option", "value", "nodes", "tasks", "expected"), ASKED)
def test_what_an_option_asks_for(
    option: str, value: str, nodes: int, tasks: int, expected: int | str | None
) -> None:
    """And what the variable of the same name asks for, which a job or a shell has."""
    variable = f"SBATCH_{option.removeprefix('--').replace('-', '_').upper()}"
    by_option = list_requests([GivenOption("--mem", "4G"), GivenOption(option, value)])
    by_variable = list_requests_of_variables({variable: value, "SLURM_GPUS": "99"}, "SBATCH")
    for requests in (by_option, by_variable):
        if expected == "nothing":
            assert requests == ()
            continue
        assert len(requests) == 1
        assert value in requests[0].source
        assert count_gpus_asked(requests, nodes, tasks) == expected


def test_what_is_not_understood_spoils_what_is() -> None:
    requests = list_requests([GivenOption("--gres", "gpu:a:b:c"), GivenOption("--gpus", "4")])
    assert [one.is_understood for one in requests] == [False, True]
    assert count_gpus_asked(requests, 1, 1) is None


JOBS = [
    ("NumNodes=2 AllocTRES=cpu=192,gres/gpu=8,gres/gpu:h100=8", 4),
    ("NumNodes=2 TRES=cpu=192,gres/gpu=8 TresPerNode=gres/gpu:4", 4),
    ("NumNodes=2 TRES=cpu=192 TresPerNode=gres/gpu:4", 4),  # gres/gpu is not in AccountingStorageTRES
    ("NumNodes=1 TRES=cpu=8 TresPerNode=gres:gpu:2", 2),  # Slurm 22.05
    ("NumNodes=2 TRES=cpu=8 TresPerJob=gres/gpu:8", 4),
    ("NumNodes=3 AllocTRES=gres/gpu=8", None),  # not as many on each
    ("NumNodes=1 TRES=cpu=8 TresPerTask=cpu=2,gres/gpu=1", None),
    ("NumNodes=1 TRES=cpu=8", None),
    ("TRES=cpu=8,gres/gpu=8", None),
    ("NumNodes=1-2 TRES=cpu=8,gres/gpu=8", 8),
    ("NumNodes=1 TresPerNode=gres/gpu:a:b:c:d", None),
]  # fmt: skip


@pytest.mark.parametrize(("record", "expected"), JOBS)
def test_the_gpus_of_a_job_by_its_record(record: str, expected: int | None) -> None:
    fields = {name: value for name, _, value in (one.partition("=") for one in record.split())}
    assert count_job_gpus(fields) == expected


def test_a_record_says_what_its_numbers_are_for() -> None:
    found = list_requests_of_job({"TresPerTask": "cpu=2,gres/gpu=1", "TresPerNode": "gres/tmp:1"})
    assert [(one.per, one.devices) for one in found] == [(Per.TASK, 1)]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("cpu=192,node=2,gres/gpu=8,gres/gpu:a100=4", 8),  # the site tracks some of the types
        ("gres/gpu=8,gres/gpu:a100=4,gres/gpu:h100=4", 8),
        ("gres/gpu:a100=4", 4),
        ("gres/gpu=8", 8),
    ],
)
def test_a_total_counts_beside_its_types(text: str, count: int) -> None:
    assert sum(one.count for one in read_tres(text)) == count
