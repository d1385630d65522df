"""What links let through, held against every row of facts/gates.yaml: never below what others have
reached, and at most a quarter above it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hpcstack.hardware.facts import find_gpu
from hpcstack.suite.gates import read_gates
from hpcstack_smoke import limits
from hpcstack_smoke.collectives.line import judge_ring
from hpcstack_smoke.limits import Limit, Term, limit_all_reduce, limit_ring, make_pcie_term
from hpcstack_smoke.result import FAIL, PASS, WARN, Result

ROWS = [row for row in read_gates()["gates"] if row["collective"] == "all_reduce"]
MOST_ABOVE = 1.25
DOC = Path(__file__).parents[3] / "docs/explanation/what-a-verdict-means.md"
BEGIN = "<!-- limits: made by tests/unit/smoke/test_limits.py -->"
END = "<!-- limits end -->"


def limit_row(row: dict[str, Any]) -> Limit:
    """The limit of the topology of ROW."""
    gpu = find_gpu(row["gpu"][0])
    assert gpu is not None, row["gpu"]
    if "links" not in row:  # two of the four are joined, so that the ring goes through PCIe 4
        term = make_pcie_term(4, 16)
        assert term is not None
        return Limit("all_reduce", (term,))
    switched = row.get("switch", False) and not row.get("ring", False)
    gpus = row["gpus"] * row["nodes"]
    found = limit_all_reduce(gpu.capability, row["links"], gpus, switched=switched)
    assert found is not None
    return found


def name_row(row: dict[str, Any]) -> str:
    ring = ", ring" if row.get("ring") else ""
    return f"{row['gpu'][0]} x {row['gpus'] * row['nodes']}{ring}, {row['source']}"


@pytest.mark.parametrize("row", ROWS, ids=name_row)
def test_no_limit_is_below_what_was_seen_nor_far_above_it(row: dict[str, Any]) -> None:
    found = limit_row(row)
    assert found.min_bytes <= max(row["min_bytes"], limits.NVLS_BYTES)
    assert found.rate >= row["busbw"], found.describe()
    # a gate, and a message too small to show the limit, are floors
    if row["kind"] != "gate" and row["min_bytes"] >= found.min_bytes:
        assert found.rate <= MOST_ABOVE * row["busbw"], found.describe()


def make_table() -> str:
    """The table of docs/explanation/what-a-verdict-means.md."""
    out = ["| GPUs | figure | GB/s | limit | above | of |", "|---|---|---|---|---|---|"]
    for row in ROWS:
        found = limit_row(row)
        gpus = f"{row['gpu'][0]} x {row['gpus'] * row['nodes']}"
        kind = row["kind"] + (", by rings" if row.get("ring") else "")
        above = "" if row["kind"] == "gate" else f"{found.rate / row['busbw'] - 1:.0%}"
        out.append(
            f"| {gpus} | {kind} | {row['busbw']:g} | {found.rate:.0f} | {above} | "
            f"{found.narrowest.name} |"
        )
    return "\n".join(out)


def test_the_table_in_the_docs_is_this_one() -> None:
    text = DOC.read_text()
    head, _, rest = text.partition(BEGIN)
    old, _, tail = rest.partition(END)
    made = make_table()
    if os.environ.get("HPCSTACK_GOLDEN") == "write":
        DOC.write_text(f"{head}{BEGIN}\n\n{made}\n\n{END}{tail}")
        return
    assert old.strip() == made, "HPCSTACK_GOLDEN=write writes it anew"


def share_reached(row: dict[str, Any]) -> float:
    """The share of its rings' figure, times NVLS's factor, that ROW has reached."""
    gpus = row["gpus"] * row["nodes"]
    gpu = find_gpu(row["gpu"][0])
    assert gpu is not None
    ring = limits.make_ring_term(gpu.capability, row["links"])
    assert ring is not None
    factor = 2 * (gpus - 1) / (gpus + 1)
    share: float = row["busbw"] / ring.rate / factor
    return share


@pytest.mark.parametrize("family", ["9", "10"])
def test_the_share_of_nvlink_sharp_holds_for_a_row_that_it_was_not_fitted_to(family: str) -> None:
    """Leave one row out, take the best share of the others: with 3 % more it covers that row."""
    rows = []
    for row in ROWS:
        gpu = find_gpu(row["gpu"][0])
        assert gpu is not None
        is_of_family = gpu.capability.partition(".")[0] == family
        uses_switch = row.get("switch") and not row.get("ring") and row["gpus"] * row["nodes"] > 4
        if is_of_family and uses_switch:
            rows.append(row)
    assert len(rows) >= 4

    share, _ = limits.find_figure(limits.NVLS_SHARES, f"{family}.0")
    for row in rows:
        others = max(share_reached(other) for other in rows if other is not row)
        assert share_reached(row) <= 1.03 * others
        assert share_reached(row) <= share <= 1.04 * max(map(share_reached, rows))


@pytest.mark.parametrize(("term", "seen"), [
    # copies from one GPU to another, by the sources of COPY_SHARES
    (limits.make_copy_term("7.0", 2, 25.781), 48.34),
    (limits.make_copy_term("8.0", 12, 25.0), 277),
    (limits.make_copy_term("9.0", 18, 26.562), 394),
    (limits.make_copy_term("9.0", 12, 26.562), 257),
    (limits.make_copy_term("9.0", 8, 26.562), 176.1),
    (limits.make_copy_term("9.0", 6, 26.562), 133.26),
    (limits.make_copy_term("10.0", 18, 53.125), 770),
    # from pinned host memory: cscs-reframe-tests, nvbandwidth's README, nccl #1264
    (make_pcie_term(3, 16), 13.2), (make_pcie_term(4, 16), 26.2), (make_pcie_term(5, 16), 55.4),
], ids=str)  # fmt: skip
def test_copies_reach_most_of_what_their_links_let_through(term: Term | None, seen: float) -> None:
    assert term is not None
    assert seen <= term.rate <= MOST_ABOVE * seen
    assert seen >= limits.HEALTHY_SHARE * term.rate


def test_the_narrowest_is_named() -> None:
    within = limits.make_ring_term("9.0", 18)
    found = limit_ring(Term("the ports", 400.0, "sysfs"), within)
    assert found.describe() == "the ports: 400 GB/s; 18 NVLinks of 20.6: 371 GB/s"
    assert found.name_bottleneck() == "18 NVLinks of 20.6 limit the ring"
    assert found.name_sources() == "sysfs; nccl src/graph/topo.h"


@pytest.mark.parametrize(("links", "best", "status"), [
    # eight 400 Gb/s ports; nccl #1221: healthy H100 by rings over two and four nodes, NVLS off
    (18, 330.0, PASS), (18, 320.0, PASS), (18, 300.0, WARN), (18, 150.0, FAIL),
    (8, 150.0, PASS),  # an H800's links let less through than its ports
    (8, 120.0, WARN),
])  # fmt: skip
def test_a_ring_is_held_against_what_is_narrowest(links: int, best: float, status: str) -> None:
    made = Result(PASS, "m", figures={"all_reduce_float32_1073741824_busbw_GB_s": best})
    ring = limit_ring(Term("the ports", 400.0, "site.yaml"), limits.make_ring_term("9.0", links))
    judged = judge_ring(made, ring, "roce", promised=True)
    assert judged.status == status
    assert f"{links} NVLinks of 20.6 limit the ring" in judged.source


def test_a_ring_is_held_against_its_ports_where_they_are_narrower() -> None:
    made = Result(PASS, "m", figures={"all_reduce_float32_1073741824_busbw_GB_s": 160.0})
    ring = limit_ring(Term("the ports", 200.0, "site.yaml"), limits.make_ring_term("9.0", 18))
    judged = judge_ring(made, ring, "infiniband", promised=True)
    assert (judged.status, judged.expected) == (FAIL, ">= 170 GB/s, 85% of 200")
    assert judge_ring(made, None, "infiniband", promised=True) is made


@pytest.mark.parametrize(("capability", "links"), [("", 18), ("N/A", 18), ("9.0", 0), ("5.0", 4)])
def test_what_has_no_source_has_no_limit(capability: str, links: int) -> None:
    assert limit_all_reduce(capability, links, 8, switched=True) is None
    assert limits.make_copy_term(capability, links, 25.0) is None
    assert make_pcie_term(9, 16) is None
    assert make_pcie_term(4, 0) is None
