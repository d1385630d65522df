"""NCCL's log, line by line and as a whole; what is made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hpcstack_smoke.collectives import nccllog
from hpcstack_smoke.collectives.transport import judged
from hpcstack_smoke.result import FAIL, PASS, WARN, Skip

HERE = Path(__file__).parents[1]
LINES: list[dict[str, Any]] = yaml.safe_load((HERE.parent / "data/nccl-lines.yaml").read_text())
SOCKETS = (HERE.parent / "plants/sockets.log").read_text().splitlines()


@pytest.mark.parametrize("one", LINES, ids=[line["line"][-40:] for line in LINES])
def test_each_line_is_read(one: dict[str, Any]) -> None:
    log = nccllog.read([one["line"]])
    if "pair" in one:
        assert log.pairs == {tuple(one["pair"]): {one["kind"]}}
    for name in ("hcas", "layers", "network", "version", "nvls", "nvls_channels", "gdr", "plugin", "no_ib"):
        if name in one:
            assert getattr(log, name) == one[name]
    if "algorithm" in one:
        assert one["algorithm"] in log.algorithms
    assert bool(log.errors) == one.get("error", False)


def line(a: int, b: int, via: str) -> str:
    return f"n:1:1 [0] NCCL INFO Channel 00/0 : {a}[0] -> {b}[0] via {via}"


def test_a_silent_fall_back_to_sockets_is_a_failure_on_a_fabric_only() -> None:
    log = nccllog.read(SOCKETS)
    result = judged(log, 2, fabric=True)
    assert result.status == FAIL and "1 pair(s) by Socket" in result.measured and "NCCL_IB_HCA" in result.remedy
    assert judged(log, 2, fabric=False).status == PASS


def test_rdma_without_gpudirect_and_shared_memory_are_warnings() -> None:
    assert judged(nccllog.read([line(0, 1, "P2P/CUMEM"), line(1, 2, "NET/IB/0")]), 2, fabric=True).status == WARN
    assert judged(nccllog.read([line(0, 1, "SHM/direct/direct")]), 2, fabric=True).status == WARN
    good = judged(nccllog.read([line(0, 1, "P2P/CUMEM"), line(1, 2, "NET/IB/0/GDRDMA")]), 2, fabric=True)
    assert good.status == PASS and good.series[0]["values"][1][2] == "IB+GDR"


def test_an_empty_log_proves_nothing() -> None:
    with pytest.raises(Skip):
        judged(nccllog.read(["hello"]), 2, fabric=True)


def test_ranks_that_began_and_never_finished_are_named() -> None:
    text = [f"n:1:1 [0] NCCL INFO ncclCommInitRank comm 0x55 rank {rank} nranks 3 - Init START" for rank in range(3)]
    text += [f"n:1:1 [0] NCCL INFO ncclCommInitRank comm 0x55 rank {rank} nranks 3 - Init COMPLETE" for rank in (0, 2)]
    assert nccllog.read(text).hung() == [1]


@given(st.lists(st.text(max_size=200)))
def test_no_text_breaks_the_reader(lines: list[str]) -> None:
    nccllog.read(lines)
