"""NCCL's log, line by line and as a whole; what is made of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hpcstack_smoke.collectives import nccllog
from hpcstack_smoke.collectives.transport import (
    Expected,
    judge_transports,
    list_switched_off,
    summarise_log,
)
from hpcstack_smoke.result import FAIL, PASS, WARN, Result, Skip

HERE = Path(__file__).parents[1]
LINES: list[dict[str, Any]] = yaml.safe_load((HERE.parent / "data/nccl-lines.yaml").read_text())
SOCKETS = (HERE.parent / "plants/sockets.log").read_text().splitlines()


@pytest.mark.parametrize("one", LINES, ids=[line["line"][-40:] for line in LINES])
def test_each_line_is_read(one: dict[str, Any]) -> None:
    log = nccllog.parse_log([one["line"]])
    if "pair" in one:
        assert log.pairs == {tuple(one["pair"]): {one["kind"]}}
    for name in (
        "hcas",
        "layers",
        "network",
        "version",
        "nvls",
        "nvls_channels",
        "gdr",
        "plugin",
        "no_ib",
    ):
        if name in one:
            assert getattr(log, name) == one[name]
    if "algorithm" in one:
        assert one["algorithm"] in log.algorithms
    assert bool(log.errors) == one.get("error", False)


def line(a: int, b: int, via: str) -> str:
    return f"n:1:1 [0] NCCL INFO Channel 00/0 : {a}[0] -> {b}[0] via {via}"


def seen(lines: list[str], expected: Expected, domains: tuple[str, str] = ("", "")) -> Result:
    """LINES, as four ranks on two nodes of these NVLink DOMAINS would each have them in its own
    log, judged.
    """
    places = [("n1", domains[0])] * 2 + [("n2", domains[1])] * 2
    log = nccllog.parse_log(lines)
    off = list_switched_off(os.environ)
    everyone = [summarise_log(log, rank, places, off) for rank in range(4)]
    return judge_transports(everyone, expected)


FABRIC = Expected(fabric="site.yaml", nvlink=True)


def test_a_silent_fall_back_to_sockets_is_a_failure_on_a_fabric_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = seen(SOCKETS, FABRIC)
    assert result.status == FAIL
    assert "1 pair(s) by Socket" in result.measured
    assert "NCCL_IB_HCA" in result.remedy
    assert "1-2 (n1, n2)" in result.measured
    assert seen(SOCKETS, Expected()).status == PASS
    assert seen(SOCKETS, Expected(perhaps=True)).status == WARN  # a network card that could do RoCE
    monkeypatch.setenv("NCCL_IB_DISABLE", "1")
    assert seen(SOCKETS, Expected(fabric="the nodes' active ports")).status == WARN
    assert seen(SOCKETS, FABRIC).status == FAIL  # what the site promises is not to be switched off


def test_an_nvlink_domain_that_goes_over_the_network_is_a_failure() -> None:
    lines = [line(0, 1, "P2P/CUMEM"), line(1, 2, "NET/IB/0/GDRDMA")]
    result = seen(lines, FABRIC, ("uuid/1", "uuid/1"))
    assert result.status == FAIL
    assert "one NVLink domain, yet connected by IB+GDR" in result.measured
    assert "IMEX" in result.remedy
    assert seen(lines, FABRIC, ("uuid/1", "uuid/2")).status == PASS
    assert (
        seen(
            [line(0, 1, "P2P/MNNVL"), line(1, 2, "P2P/MNNVL")], FABRIC, ("uuid/1", "uuid/1")
        ).status
        == PASS
    )


def test_a_rank_without_a_log_is_told() -> None:
    places = [("n1", ""), ("n1", "")]
    heard = summarise_log(nccllog.parse_log([line(0, 1, "P2P/CUMEM")]), 0, places)
    result = judge_transports([heard, summarise_log(nccllog.parse_log([]), 1, places)], FABRIC)
    assert result.status == WARN
    assert "1 rank(s) left no log: [1]" in result.measured


def test_rdma_without_gpudirect_and_shared_memory_are_warnings() -> None:
    assert seen([line(0, 1, "P2P/CUMEM"), line(1, 2, "NET/IB/0")], FABRIC).status == WARN
    assert seen([line(0, 1, "SHM/direct/direct")], FABRIC).status == WARN
    assert (
        seen([line(0, 1, "SHM/direct/direct")], Expected()).status == PASS
    )  # GPUs on PCIe of two sockets
    good = seen([line(0, 1, "P2P/CUMEM"), line(1, 2, "NET/IB/0/GDRDMA")], FABRIC)
    assert good.status == PASS
    assert good.series[0]["values"][1][2] == "IB+GDR"


def test_an_empty_log_proves_nothing() -> None:
    with pytest.raises(Skip):
        seen(["hello"], FABRIC)


def test_ranks_that_began_and_never_finished_are_named() -> None:
    text = [
        f"n:1:1 [0] NCCL INFO ncclCommInitRank comm 0x55 rank {rank} nranks 3 - Init START"
        for rank in range(3)
    ]
    text += [
        f"n:1:1 [0] NCCL INFO ncclCommInitRank comm 0x55 rank {rank} nranks 3 - Init COMPLETE"
        for rank in (0, 2)
    ]
    assert nccllog.parse_log(text).hung() == [1]


@given(st.lists(st.text(max_size=200)))
def test_no_text_breaks_the_reader(lines: list[str]) -> None:
    nccllog.parse_log(lines)
