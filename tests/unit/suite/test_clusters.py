"""Whole made-up clusters (tests/clusters), healthy and each with one fault, through the suite's own
readers and judges.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hpcstack.report import Report
from support import clusters

DOC = Path(__file__).parents[3] / "docs/reference/test-results.md"
BEGIN, END = "<!-- clusters: made by tests/unit/suite/test_clusters.py -->", "<!-- clusters end -->"
BAD = ("FAIL", "WARN", "ERROR")
CASES = [(cluster, fault) for fault in clusters.faults() for cluster in fault["on"]]


MADE: dict[tuple[str, str, bool], Report] = {}


def report(cluster: str, fault: dict[str, Any] | None = None, *, promised: bool = True) -> Report:
    key = (cluster, fault["name"] if fault else "", promised)
    if key not in MADE:
        own = {**fault, "change": fault["on"][cluster]} if fault else None
        MADE[key] = clusters.judged(clusters.Cluster(cluster, own, promised=promised))
    return MADE[key]


@pytest.mark.parametrize("promised", [True, False], ids=["site.yaml", "alone"])
@pytest.mark.parametrize("name", clusters.names())
def test_a_healthy_cluster_has_nothing_that_a_person_must_act_on(name: str, promised: bool) -> None:
    found = report(name, promised=promised)
    said = {
        # two models of GPU in one run
        ("mixed", True): ("node.same",), ("mixed", False): ("node.same",),
        # cards that could do RoCE, which NCCL does not use: what are they?
        ("l40s", False): ("nccl.transport",),
    }  # fmt: skip
    bad = [(one.code, one.status, one.measured or one.evidence) for one in found.outcomes
           if one.status in BAD and one.code not in said.get((name, promised), ())]  # fmt: skip
    assert not bad
    assert sum(one.status == "PASS" for one in found.outcomes) >= 4


def finding(found: Report, fault: dict[str, Any], host: str) -> tuple[str, str]:
    """(status, check) of the worst check that finds FAULT and names HOST; empty where none does."""
    for status in ("FAIL", "WARN"):
        for one in found.outcomes:
            if one.status != status or one.code not in fault["finds"]:
                continue
            said = f"{' '.join(one.where)} {one.measured} {one.evidence}"
            if fault.get("everywhere") or host in said:
                return status, one.code
    return "", ""


@pytest.mark.soak("one cluster shows a fault", but=clusters.shows_first)
@pytest.mark.parametrize(
    ("name", "fault"), CASES, ids=[f"{fault['name']}, {name}" for name, fault in CASES]
)
def test_each_fault_is_found_and_its_node_named(name: str, fault: dict[str, Any]) -> None:
    for promised in (True, False):
        if not promised and fault.get("alone", {}).get(name) is False:
            continue
        found = report(name, fault, promised=promised)
        host = clusters.load(name)["nodes"][fault.get("place", 1)]
        said = [
            (one.code, one.status, one.measured or one.evidence)
            for one in found.outcomes
            if one.status in BAD
        ]
        assert finding(found, fault, host)[0], (promised, said)
        assert not [one for one in said if one[1] == "ERROR"]


@pytest.mark.parametrize(
    ("change", "status"),
    [({}, "WARN"), ({"efa_peermem": True}, "PASS"), ({"efa_gdr": True}, "PASS")],
)
def test_efa_with_the_closed_driver_has_a_module_of_its_own(
    change: dict[str, Any], status: str
) -> None:
    """ucx #10704: GPUDirect RDMA by efa_nv_peermem, without nvidia-peermem or dma-buf."""
    closed = {"driver/open": False, **change}
    fault = {"name": "closed", "on": {"efa": closed}, "everywhere": True, "finds": ["fabric.gdr"]}
    found = clusters.judged(clusters.Cluster("efa", {**fault, "change": closed}, promised=True))
    (one,) = [one for one in found.outcomes if one.code == "fabric.gdr"]
    assert one.status == status, one


@pytest.mark.soak("one cluster shows a fault", but=lambda every: not every)
@pytest.mark.parametrize("every", [False, True], ids=["first", "every"])
def test_no_node_but_the_broken_one_is_blamed(every: bool) -> None:
    for name, fault in CASES:
        if fault.get("everywhere") or not (every or clusters.shows_first(name, fault)):
            continue
        found = report(name, fault)
        hosts = clusters.load(name)["nodes"]
        broken = hosts[fault.get("place", 1)]
        for one in found.outcomes:
            if one.status in BAD and one.code in clusters.ON_NODES + clusters.AFTER:
                assert all(where.startswith(broken) for where in one.where), (
                    name,
                    fault["name"],
                    one,
                )


def table() -> str:
    """The table of docs/reference/test-results.md."""
    out = ["| fault | cluster | with site.yaml | without |", "|---|---|---|---|"]
    for name in clusters.names():
        verdicts = []
        for promised in (True, False):
            bad = [
                f"{one.status} `{one.code}`"
                for one in report(name, promised=promised).outcomes
                if one.status in BAD
            ]
            verdicts.append(", ".join(bad) or "nothing")
        out.append(
            f"| none | {name}: {clusters.load(name)['about']} | {verdicts[0]} | {verdicts[1]} |"
        )
    for fault in clusters.faults():
        rows: dict[tuple[str, ...], list[str]] = {}
        for name in fault["on"]:
            host = clusters.load(name)["nodes"][fault.get("place", 1)]
            found = [
                finding(report(name, fault, promised=promised), fault, host)
                for promised in (True, False)
            ]
            named = "" if fault.get("everywhere") else ", names the node"
            cells = tuple(
                f"{status} `{code}`{named}" if status else "not seen" for status, code in found
            )
            rows.setdefault(cells, []).append(name)
        out += [
            f"| {fault['name']} | {', '.join(on)} | {first} | {second} |"
            for (first, second), on in rows.items()
        ]
    return "\n".join(out)


@pytest.mark.soak(
    "all clusters with all faults, twice",
    kept="tests/unit/suite/test_clusters.py::test_each_fault_is_found_and_its_node_named",
)
def test_the_table_in_the_docs_is_this_one() -> None:
    text = DOC.read_text()
    head, _, rest = text.partition(BEGIN)
    old, _, tail = rest.partition(END)
    made = table()
    if os.environ.get("HPCSTACK_GOLDEN") == "write":
        DOC.write_text(f"{head}{BEGIN}\n{made}\n{END}{tail}")
        return
    assert old.strip() == made, "HPCSTACK_GOLDEN=write writes it anew"
