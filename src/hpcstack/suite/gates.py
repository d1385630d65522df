"""Hold a run against gates: what others demand of a topology, or have measured on it.

They are in facts/gates.yaml. A figure below a gate of `kind: gate` fails the check; one below 95 %
of a gate of `kind: seen` is a warning, as is one below 95 % of what the site itself expects (its
`baselines`). Only sizes from a gate's `min_bytes` on count, so the quick tier's 256 MiB are held
against nothing. Where no gate is of the topology, what NVLink lets through (hpcstack_smoke/limits)
is a warning's measure.

Tested in tests/unit/suite/test_judge.py.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

from hpcstack.core import data
from hpcstack.report.model import WORST, is_lower_better
from hpcstack_smoke.limits import HEALTHY_SHARE, Limit, limit_all_reduce

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.report import Outcome, Report
    from hpcstack.site.fabric import Baseline

SEEN_SHARE = 0.95
# checks that are judged by the gates of another one: in a run of several nodes nccl.node measures
# each of them, as nccl.bandwidth does a node alone
WITHIN = {"nccl.node": "nccl.bandwidth"}
# The kind of a row that judges no run
REACHED = "reached"
# The check whose all_reduce has a limit
MEASURED = "nccl.bandwidth"
NOTHING_KNOWN = "UNKNOWN: no gate for these GPUs, and no source of what joins them"
SLOWER = "hpcstack test STACK --sweep names the slow node; nccl.transport the path"


@cache
def read_gates() -> dict[str, Any]:
    """Return the content of facts/gates.yaml."""
    import yaml

    path = data.find_data_folder("facts") / "gates.yaml"
    loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


def fits_topology(gate: dict[str, Any], report: Report, *, within: bool = False) -> bool:
    """Whether GATE is for the topology that REPORT ran on.

    All nodes must be alike, and every GPU of a node in use. WITHIN: each node counts by itself,
    however many there are.
    """
    nodes = list(report.inventory.values())
    if not nodes or any(_describe_kind(node) != _describe_kind(nodes[0]) for node in nodes):
        return False

    first = nodes[0]
    count = 1 if within else len(nodes)
    if gate.get("nodes", count) != count or report.backend != "nccl":
        return False
    # `of`: how many GPUs the whole node may have, as a part of another board is wired otherwise
    if "of" in gate and report.promised.get("node_gpus") not in gate["of"]:
        return False
    if "gpu" in gate and str(first.get("gpu", "")).removeprefix("NVIDIA ") not in gate["gpu"]:
        return False
    if report.world_size != first.get("gpus", 0) * len(nodes):
        return False
    # what a gate does not name does not matter to it
    return all(
        gate.get(name, first.get(name)) == first.get(name)
        for name in ("gpus", "ports", "rate_gbps")
    )


def _describe_kind(node: dict[str, Any]) -> dict[str, Any]:
    """Return what nodes of one kind have in common, from the inventory of NODE."""
    return {name: node.get(name) for name in ("gpu", "gpus", "ports", "rate_gbps")}


def judge_outcome(outcome: Outcome, report: Report) -> Outcome:
    """Return OUTCOME judged by the gates of the topology of REPORT; of several the worst counts."""
    if outcome.status != "PASS":
        return outcome

    code = WITHIN.get(outcome.code, outcome.code)
    within = outcome.code in WITHIN
    judged = []
    for gate in read_gates()["gates"]:
        if gate["code"] != code or gate["kind"] == REACHED:
            continue
        if not fits_topology(gate, report, within=within):
            continue
        reached = find_reached(outcome, gate)
        if reached:
            judged.append(_judge_by_gate(outcome, gate, *reached))
    if judged:
        return min(judged, key=lambda one: WORST.index(one.status))
    if code != MEASURED:
        return outcome
    limit = find_limit(report, within=within)
    if limit is not None:
        return _judge_by_limit(outcome, limit)
    if report.backend == "nccl" and (within or len(report.inventory) == 1):
        return outcome.model_copy(update={"expected": NOTHING_KNOWN})
    return outcome


def find_limit(report: Report, *, within: bool = False) -> Limit | None:
    """Return what NVLink lets all_reduce reach on the nodes of REPORT; None where that is unknown.

    All nodes must be alike, and every GPU of a node in use. WITHIN: each node counts by itself.
    Else several nodes must be in one NVLink domain: what a network lets through is nccl.ring's.
    """
    if not fits_topology({}, report, within=within):
        return None

    nodes = list(report.inventory.values())
    domains = {str(node.get("domain", "")) for node in nodes}
    gpus = int(nodes[0].get("gpus", 0))
    if len(nodes) > 1 and not within:
        if len(domains) != 1 or domains == {""}:
            return None
        gpus *= len(nodes)
    # What is broken on one node must not lower what is expected of it
    links = max(int(node.get("nvlinks", 0)) for node in nodes)
    is_switched = any(node.get("nvswitch", False) for node in nodes)
    capability = str(nodes[0].get("capability", ""))
    return limit_all_reduce(capability, links, gpus, switched=is_switched)


def _judge_by_limit(outcome: Outcome, limit: Limit) -> Outcome:
    """Return OUTCOME, a PASS, as a WARN where all_reduce is far below LIMIT."""
    measure = {"collective": "all_reduce", "min_bytes": limit.min_bytes}
    reached = find_reached(outcome, measure)
    if reached is None:
        return outcome

    size, value = reached
    want = HEALTHY_SHARE * limit.rate
    update: dict[str, Any] = {
        "expected": f">= {want:.3g} GB/s, {HEALTHY_SHARE:.0%} of {limit.describe()}",
        "source": limit.name_sources(),
    }
    if not value >= want:  # also where it is NaN
        update["status"] = "WARN"
        update["measured"] = _name_slowest(outcome, measure, size, value)
        update["remedy"] = SLOWER
    return outcome.model_copy(update=update)


def _judge_by_gate(outcome: Outcome, gate: dict[str, Any], size: int, value: float) -> Outcome:
    """Return OUTCOME judged by one GATE, when VALUE GB/s were reached at SIZE bytes."""
    hard = gate["kind"] == "gate"
    limit = float(gate["busbw"])
    if not hard:
        limit *= SEEN_SHARE

    # the limit is drawn into the curves of the collective
    series = tuple(
        {**one, "gate": limit} if one.get("name", "").startswith(gate["collective"]) else one
        for one in outcome.series
    )
    update: dict[str, Any] = {
        "expected": f">= {limit:g} GB/s at {size / 2**30:g} GiB",
        "source": read_gates()["sources"][gate["source"]],
        "series": series,
        "remedy": "",
    }
    if not value >= limit:  # also where it is NaN
        update["status"] = "FAIL" if hard else "WARN"
        update["measured"] = _name_slowest(outcome, gate, size, value)
        update["remedy"] = SLOWER
    return outcome.model_copy(update=update)


def _name_slowest(outcome: Outcome, gate: dict[str, Any], size: int, value: float) -> str:
    """Return what was reached at SIZE bytes, and on which node, where each has its own figure."""
    name = f"{gate['collective']}_float32_{size}_busbw_GB_s"
    reached = f"{value:g} GB/s at {size / 2**30:g} GiB"
    found = {where: figures[name] for where, figures in outcome.peers.items() if name in figures}
    if not found:
        return reached
    slowest = min(found, key=lambda where: found[where])
    return f"{reached} on {slowest.partition(':')[0]}"


def judge_baselines(outcome: Outcome, baselines: Mapping[str, Baseline]) -> Outcome:
    """Return OUTCOME as a WARN where a figure is more than 5 % worse than the site expects.

    BASELINES are {CHECK or CHECK/FIGURE: what is expected}. Of times (`us`) less is better.
    """
    if outcome.status != "PASS":
        return outcome

    for key, baseline in baselines.items():
        code, _, figure = key.partition("/")
        found = _find_figure(outcome, figure, baseline.unit) if code == outcome.code else None
        if not found:
            continue

        name, value = found
        if is_lower_better(name, outcome.better):
            limit = baseline.value / SEEN_SHARE
            expected = f"<= {limit:g} {baseline.unit}".strip()
            worse = value > limit
        else:
            limit = baseline.value * SEEN_SHARE
            expected = f">= {limit:g} {baseline.unit}".strip()
            worse = value < limit
        held = outcome.model_copy(update={"expected": expected, "source": baseline.source})
        if worse:
            said = f"{name} {value:g}, the site expects {baseline.value:g} {baseline.unit}".strip()
            return held.model_copy(
                update={
                    "status": "WARN",
                    "measured": said,
                    "evidence": outcome.measured,
                    "remedy": SLOWER,
                }
            )
        outcome = held
    return outcome


def judge_own_gates(outcome: Outcome) -> Outcome:
    """Return OUTCOME, of an own check, as a FAIL where a figure does not reach its own gate.

    A WARN is judged, too: it is one where some nodes passed and others were skipped.
    """
    if outcome.status not in ("PASS", "WARN") or not outcome.gates:
        return outcome

    demands = []
    worse = []
    for name, gate in outcome.gates.items():
        lower = is_lower_better(name, outcome.better)
        demand = f"{name} {'<=' if lower else '>='} {gate:g}"
        demands.append(demand)
        # each node that is worse, or the figure itself where all have the same one
        of_nodes = {where: one[name] for where, one in outcome.peers.items() if name in one}
        values = of_nodes or {"": outcome.figures.get(name, math.nan)}
        for where, value in values.items():
            good = value <= gate if lower else value >= gate
            if not good:  # also where it is NaN
                worse.append(f"{name} {value:g}{f' on {where}' if where else ''}")
    update: dict[str, Any] = {"expected": "; ".join(filter(None, (outcome.expected, *demands)))}
    if worse:
        update["status"] = "FAIL"
        update["measured"] = "; ".join(worse[:8])
        if len(worse) > 8:
            update["measured"] += f"; and {len(worse) - 8} more"
        update["evidence"] = outcome.evidence or outcome.measured
    return outcome.model_copy(update=update)


def _find_figure(outcome: Outcome, name: str, unit: str) -> tuple[str, float] | None:
    """Return (name, value) of the figure of OUTCOME that a baseline is about; None if it has none.

    That is the figure NAME. Without a name it is all_reduce's at its largest size; where there is
    none, the only figure of UNIT.
    """
    figures = outcome.figures
    if name:
        return (name, figures[name]) if name in figures else None

    reached = find_reached(outcome, {"collective": "all_reduce_float32", "min_bytes": 0})
    if reached:
        size, value = reached
        return f"all_reduce_float32_{size}_busbw_GB_s", value

    end = unit.replace("/", "_")
    named = [one for one in figures if one.endswith(end)]
    return (named[0], figures[named[0]]) if len(named) == 1 else None


def find_reached(outcome: Outcome, gate: dict[str, Any]) -> tuple[int, float] | None:
    """Return (bytes, GB/s) at the largest size that GATE counts; None where there is none."""
    best = None
    for name, value in outcome.figures.items():
        head, _, _ = name.rpartition("_busbw_GB_s")
        what, _, size = head.rpartition("_")
        of_collective = what.startswith(f"{gate['collective']}_")
        if of_collective and size.isdigit() and int(size) >= gate["min_bytes"]:
            best = max(best or (0, 0.0), (int(size), value))
    return best
