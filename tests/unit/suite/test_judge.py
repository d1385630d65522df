"""Gates of a topology, the site's own history, and what virtual nodes may not prove."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstack.report import Outcome, Report
from hpcstack.site.fabric import Baseline
from hpcstack.suite import gates, history
from hpcstack.suite.judge import judge_report

GIB = 1 << 30


def report(
    gpu: str = "NVIDIA A100-SXM4-80GB",
    gpus: int = 8,
    value: float = 235.0,
    size: int = 16 * GIB,
    **more: Any,
) -> Report:
    name = f"all_reduce_float32_{size}_busbw_GB_s"
    line = {
        "name": "all_reduce float32",
        "x": [size],
        "y": [value],
        "x_unit": "bytes",
        "y_unit": "GB/s",
    }
    outcome = Outcome(
        code="nccl.bandwidth", status="PASS", measured="m", figures={name: value}, series=(line,)
    )
    base: dict[str, Any] = {
        "stack": "s-1", "image": "/i", "image_sha256": "0" * 64, "suite": "0", "runtime": "pyxis", "backend": "nccl",
        "nodes": ("n1",), "world_size": gpus, "started": "2026-01-01T00:00:00+00:00", "seconds": 1.0,
        "inventory": {"n1": {"gpu": gpu, "gpus": gpus, "ports": 8, "rate_gbps": 200.0}}, "outcomes": (outcome,),
    }  # fmt: skip
    return Report(**{**base, **more})


@pytest.mark.parametrize(("made", "status"), [
    (report(value=235.0), "PASS"),
    (report(value=200.0), "FAIL"),
    (report(value=200.0, size=GIB // 4), "PASS"),  # the quick tier's size is held against nothing
    (report(gpu="NVIDIA H200", value=460.0, size=8 * GIB), "PASS"),
    (report(gpu="NVIDIA H200 NVL", value=100.0, size=8 * GIB), "PASS"),
    (report(gpu="NVIDIA GH200 480GB", value=100.0, size=8 * GIB), "PASS"),
    # others have seen more; nobody demands it
    (report(gpu="NVIDIA H200", value=400.0, size=8 * GIB), "WARN"),
    # four GPUs are another topology
    (report(gpu="NVIDIA H200", gpus=4, value=300.0, size=8 * GIB), "PASS"),
    (report(gpu="NVIDIA L40S", value=5.0), "PASS"),  # nothing is sourced
    (report(value=100.0, world_size=4), "PASS"),  # not every GPU of the node took part
])  # fmt: skip
def test_gates(made: Report, status: str) -> None:
    one = judge_report(made, [], {}).outcomes[0]
    assert one.status == status
    if status != "PASS":
        assert one.source
        assert one.expected.startswith(">= ")
        assert one.series[0]["gate"] > 0


def make_node(gpu: str, capability: str, links: int, *, switch: bool = True) -> dict[str, Any]:
    return {"gpu": gpu, "gpus": 8, "capability": capability, "nvlinks": links, "nvswitch": switch}


@pytest.mark.parametrize(("node", "value", "status", "expected"), [
    # no gate is of these: what NVLink lets through is a warning's measure
    (make_node("NVIDIA H20", "9.0", 18), 470.0, "PASS", "18 NVLinks of 20.6, NVLink SHARP over 8: 490"),
    (make_node("NVIDIA H20", "9.0", 18), 300.0, "WARN", ">= 368 GB/s, 75% of 18 NVLinks"),
    (make_node("NVIDIA H800", "9.0", 8), 205.0, "PASS", "8 NVLinks of 20.6, NVLink SHARP over 8: 218"),
    (make_node("NVIDIA A800-SXM4-80GB", "8.0", 8), 150.0, "PASS", "8 NVLinks of 20: 160"),
    (make_node("NVIDIA A800-SXM4-80GB", "8.0", 8), 90.0, "WARN", ">= 120 GB/s"),
    # how many links it has is not known, nor what they carry
    (make_node("NVIDIA X1", "9.0", 0), 5.0, "PASS", ""),
    (make_node("NVIDIA X1", "", 18), 5.0, "PASS", ""),
    # a gate stands, whatever the links let through
    (make_node("NVIDIA H100 80GB HBM3", "9.0", 18), 455.0, "FAIL", ">= 460 GB/s"),
])  # fmt: skip
def test_where_no_gate_is_published_links_are_the_measure(
    node: dict[str, Any], value: float, status: str, expected: str
) -> None:
    made = report(value=value, inventory={"n1": node})
    one = judge_report(made, [], {}).outcomes[0]
    assert (one.status, expected in one.expected) == (status, True), one
    if status == "WARN":
        assert "topo.h" in one.source
        assert one.measured == f"{value:g} GB/s at 16 GiB"


def test_a_domain_of_several_nodes_has_one_limit_and_a_network_none() -> None:
    def judge(domains: tuple[str, str], value: float) -> Outcome:
        nodes = {
            f"n{number}": {**make_node("NVIDIA GB400", "10.0", 18), "gpus": 4, "domain": domain}
            for number, domain in enumerate(domains)
        }
        made = report(value=value, inventory=nodes, world_size=8, nodes=("n0", "n1"))
        return judge_report(made, [], {}).outcomes[0]

    assert judge(("a/1", "a/1"), 500.0).status == "WARN"
    assert judge(("a/1", "a/1"), 800.0).status == "PASS"
    assert judge(("a/1", "b/1"), 100.0).status == "PASS"
    assert judge(("", ""), 100.0).expected == ""


def test_each_node_of_a_run_of_several_is_held_against_the_gate_of_one_and_named() -> None:
    name = f"all_reduce_float32_{16 * GIB}_busbw_GB_s"
    peers = {"n1:0": {name: 475.0}, "n2:8": {name: 300.0}}
    one = Outcome(code="nccl.node", status="PASS", measured="m", figures={name: 300.0}, peers=peers)
    inventory = {host: {"gpu": "NVIDIA H100 80GB HBM3", "gpus": 8} for host in ("n1", "n2")}
    made = report(world_size=16, nodes=("n1", "n2"), inventory=inventory, outcomes=(one,))
    found = judge_report(made, [], {}).outcomes[0]
    assert found.status == "FAIL"
    assert found.measured == "300 GB/s at 16 GiB on n2"


def test_what_the_site_expects_of_its_nodes_warns_below_95_percent() -> None:
    expects = Baseline(value=250.0, unit="GB/s", source="nccl-tests, 2026-03")
    for value, status in ((240.0, "PASS"), (236.0, "WARN")):
        found = judge_report(report(value=value), [], {"nccl.bandwidth": expects}).outcomes[0]
        assert (found.status, found.source) == (status, "nccl-tests, 2026-03"), found
    named = {f"nccl.bandwidth/all_reduce_float32_{16 * GIB}_busbw_GB_s": expects}
    assert judge_report(report(value=236.0), [], named).outcomes[0].status == "WARN"


def test_every_gate_has_a_source() -> None:
    table = gates.read_gates()
    for gate in table["gates"]:
        assert gate["source"] in table["sources"]
        assert gate["kind"] in ("gate", "seen", "reached")
        assert gate["busbw"] > 0


def fill(path: Path, values: list[float]) -> list[history.Past]:
    for number, value in enumerate(values):
        made = report(gpu="NVIDIA L40S", value=value).model_copy(
            update={"started": f"2026-01-{number + 1:02}T00:00:00+00:00"}
        )
        history.append_run(path, made, "/runs")
    return history.load_history(path)


def test_worse_than_the_sites_own_history_is_a_warning(tmp_path: Path) -> None:
    pasts = fill(tmp_path / "h.jsonl", [40.0, 40.4, 39.8, 40.1, 40.2, 39.9, 40.0, 40.3])
    assert (
        judge_report(report(gpu="NVIDIA L40S", value=39.0), pasts, {}).outcomes[0].status == "PASS"
    )
    one = judge_report(report(gpu="NVIDIA L40S", value=36.0), pasts, {}).outcomes[0]
    assert one.status == "WARN"
    assert "median of 8 runs 40" in one.measured


def test_seven_runs_are_too_few_and_other_nodes_are_no_history(tmp_path: Path) -> None:
    pasts = fill(tmp_path / "h.jsonl", [40.0] * 7)
    assert (
        judge_report(report(gpu="NVIDIA L40S", value=10.0), pasts, {}).outcomes[0].status == "PASS"
    )
    pasts = fill(tmp_path / "h.jsonl", [40.0])
    assert (
        judge_report(report(gpu="NVIDIA L40S", value=10.0), pasts, {}).outcomes[0].status == "WARN"
    )
    assert (
        judge_report(report(gpu="NVIDIA L40S", value=10.0, nodes=("n2",)), pasts, {})
        .outcomes[0]
        .status
        == "PASS"
    )


def test_noisy_figures_have_more_room(tmp_path: Path) -> None:
    pasts = fill(tmp_path / "h.jsonl", [40.0, 20.0, 60.0, 30.0, 50.0, 45.0, 35.0, 40.0])
    assert (
        judge_report(report(gpu="NVIDIA L40S", value=30.0), pasts, {}).outcomes[0].status == "PASS"
    )


def test_latency_gets_worse_upwards() -> None:
    outcome = Outcome(code="nccl.latency", status="PASS", figures={"all_reduce_8_us": 30.0})
    pasts = [
        history.Past("2026", "k", {"nccl.latency/all_reduce_8_us": 20.0}, "PASS") for _ in range(8)
    ]
    assert history.judge_regression(outcome, pasts).status == "WARN"
    lower = outcome.model_copy(update={"figures": {"all_reduce_8_us": 10.0}})
    assert history.judge_regression(lower, pasts).status == "PASS"


def test_virtual_nodes_prove_no_figure(tmp_path: Path) -> None:
    one = judge_report(report(value=1.0, virtual_nodes=True), [], {}).outcomes[0]
    assert one.informational
    assert one.status == "PASS"


def test_a_torn_line_is_left_out_and_the_next_append_is_read(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    fill(path, [40.0])
    with path.open("a") as file:
        file.write('{"started": "2026-01-02T00:00')  # killed here
    assert len(fill(path, [41.0])) == 2
    assert all(json.loads(line) for line in path.read_text().splitlines() if line.endswith("}"))


@given(st.lists(st.floats(1, 1000), min_size=8, max_size=30))
def test_the_median_itself_never_regresses(values: list[float]) -> None:
    import statistics

    assert history.find_allowed_deviation(values, "x_GB_s") >= 0.5
    outcome = Outcome(code="c.d", status="PASS", figures={"x_GB_s": statistics.median(values)})
    pasts = [history.Past("2026", "k", {"c.d/x_GB_s": value}, "PASS") for value in values]
    assert history.judge_regression(outcome, pasts).status == "PASS"


def test_only_figures_with_a_direction_are_compared() -> None:
    outcome = Outcome(code="ddp.fp32", status="PASS", figures={"loss_error": 1e-7, "ports": 1.0})
    pasts = [
        history.Past("2026", "k", {"ddp.fp32/loss_error": 5e-7, "ddp.fp32/ports": 8.0}, "PASS")
        for _ in range(9)
    ]
    assert history.judge_regression(outcome, pasts).status == "PASS"
