"""Gates: what others have measured or demand of a topology (facts/gates.yaml), held against a run.

A gate of `kind: gate` fails a check; one of `kind: seen` only warns, and at 95 % of it. Only sizes from min_bytes on
count: a quick tier's 256 MiB is held against nothing.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from hpcstack.core import data

if TYPE_CHECKING:
    from hpcstack.report import Outcome, Report

SEEN_SHARE = 0.95


@cache
def table() -> dict[str, Any]:
    """facts/gates.yaml."""
    import yaml

    loaded: dict[str, Any] = yaml.safe_load((data.folder("facts") / "gates.yaml").read_text(encoding="utf-8"))
    return loaded


def fits(gate: dict[str, Any], report: Report) -> bool:
    """Whether GATE is of the topology that REPORT ran on: all nodes alike, every GPU of a node in use."""
    nodes = list(report.inventory.values())
    if not nodes or any(_kind(node) != _kind(nodes[0]) for node in nodes):
        return False
    first = nodes[0]
    if gate.get("nodes", len(nodes)) != len(nodes) or report.backend != "nccl":
        return False
    if "gpu" in gate and str(first.get("gpu", "")).removeprefix("NVIDIA ") not in gate["gpu"]:
        return False
    if gate.get("gpus", first.get("gpus")) != first.get("gpus") or report.world_size != first.get("gpus", 0) * len(
        nodes
    ):
        return False
    return bool(all(gate.get(name, first.get(name)) == first.get(name) for name in ("ports", "rate_gbps")))


def _kind(node: dict[str, Any]) -> dict[str, Any]:
    return {name: node.get(name) for name in ("gpu", "gpus", "ports", "rate_gbps")}


def judged(outcome: Outcome, report: Report) -> Outcome:
    """OUTCOME with the gate of its topology: FAIL below a gate, WARN below 95 % of what others have seen."""
    for gate in table()["gates"]:
        if gate["code"] != outcome.code or outcome.status != "PASS" or not fits(gate, report):
            continue
        found = reached(outcome, gate)
        if not found:
            continue
        size, value = found
        want, hard = float(gate["busbw"]), gate["kind"] == "gate"
        limit = want if hard else SEEN_SHARE * want
        source = table()["sources"][gate["source"]]
        status = "PASS" if value >= limit else "FAIL" if hard else "WARN"
        series = tuple(
            {**one, "gate": limit} if one.get("name", "").startswith(gate["collective"]) else one
            for one in outcome.series
        )
        return outcome.model_copy(
            update={
                "status": status,
                "expected": f">= {limit:g} GB/s at {size / 2**30:g} GiB",
                "source": source,
                "series": series,
                "remedy": ""
                if status == "PASS"
                else "hpcstack test STACK --sweep names the slow node; nccl.transport the path",
            }
        )
    return outcome


def reached(outcome: Outcome, gate: dict[str, Any]) -> tuple[int, float] | None:
    """(bytes, GB/s) at the largest size that the gate counts."""
    best = None
    for name, value in outcome.figures.items():
        head, _, _ = name.rpartition("_busbw_GB_s")
        what, _, size = head.rpartition("_")
        if what.startswith(f"{gate['collective']}_") and size.isdigit() and int(size) >= gate["min_bytes"]:
            best = max(best or (0, 0.0), (int(size), value))
    return best
