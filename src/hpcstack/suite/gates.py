"""Gates: what others have measured or demand of a topology (facts/gates.yaml), held against a run.

A gate of `kind: gate` fails a check; one of `kind: seen` only warns, and at 95 % of it. Only sizes
from min_bytes on count: a quick tier's 256 MiB is held against nothing. What the site itself
expects (`baselines`) warns at 95 % too.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from hpcstack.core import data
from hpcstack.report.model import WORST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.report import Outcome, Report
    from hpcstack.site.fabric import Baseline

SEEN_SHARE = 0.95


@cache
def read_gates() -> dict[str, Any]:
    """facts/gates.yaml."""
    import yaml

    loaded: dict[str, Any] = yaml.safe_load(
        (data.find_data_folder("facts") / "gates.yaml").read_text(encoding="utf-8")
    )
    return loaded


WITHIN = {"nccl.node": "nccl.bandwidth"}  # each node of a run of several by the gates of one alone


def fits_topology(gate: dict[str, Any], report: Report, *, within: bool = False) -> bool:
    """Whether GATE is of the topology that REPORT ran on: all nodes alike, every GPU of a node in
    use.

    WITHIN: of each node by itself, however many there are.
    """
    nodes = list(report.inventory.values())
    if not nodes or any(_kind(node) != _kind(nodes[0]) for node in nodes):
        return False
    first = nodes[0]
    count = 1 if within else len(nodes)
    if gate.get("nodes", count) != count or report.backend != "nccl":
        return False
    if "of" in gate and report.promised.get("node_gpus") not in gate["of"]:
        return False
    if "gpu" in gate and str(first.get("gpu", "")).removeprefix("NVIDIA ") not in gate["gpu"]:
        return False
    if gate.get("gpus", first.get("gpus")) != first.get("gpus") or report.world_size != first.get(
        "gpus", 0
    ) * len(nodes):
        return False
    return bool(
        all(gate.get(name, first.get(name)) == first.get(name) for name in ("ports", "rate_gbps"))
    )


def _kind(node: dict[str, Any]) -> dict[str, Any]:
    return {name: node.get(name) for name in ("gpu", "gpus", "ports", "rate_gbps")}


def judge_outcome(outcome: Outcome, report: Report) -> Outcome:
    """OUTCOME with the gates of its topology: FAIL below a gate, WARN below 95 % of what others
    have seen.
    """
    if outcome.status != "PASS":
        return outcome
    made = [
        _held_against(outcome, gate, *found)
        for gate in read_gates()["gates"]
        if gate["code"] == WITHIN.get(outcome.code, outcome.code)
        and fits_topology(gate, report, within=outcome.code in WITHIN)
        and (found := find_reached(outcome, gate))
    ]
    return min(made, key=lambda one: WORST.index(one.status), default=outcome)


def _held_against(outcome: Outcome, gate: dict[str, Any], size: int, value: float) -> Outcome:
    """OUTCOME by one gate: VALUE GB/s were reached at SIZE bytes."""
    want, hard = float(gate["busbw"]), gate["kind"] == "gate"
    limit = want if hard else SEEN_SHARE * want
    below = "FAIL" if hard else "WARN"
    status = "PASS" if value >= limit else below
    series = tuple(
        {**one, "gate": limit} if one.get("name", "").startswith(gate["collective"]) else one
        for one in outcome.series
    )
    return outcome.model_copy(
        update={
            "status": status,
            "measured": outcome.measured
            if status == "PASS"
            else _slowest(outcome, gate, size, value),
            "expected": f">= {limit:g} GB/s at {size / 2**30:g} GiB",
            "source": read_gates()["sources"][gate["source"]],
            "series": series,
            "remedy": "" if status == "PASS" else SLOWER,
        }
    )


def _slowest(outcome: Outcome, gate: dict[str, Any], size: int, value: float) -> str:
    """What was reached, and on which node where they differ."""
    name = f"{gate['collective']}_float32_{size}_busbw_GB_s"
    found = {where: figures[name] for where, figures in outcome.peers.items() if name in figures}
    where = f" on {min(found, key=lambda one: found[one]).partition(':')[0]}" if found else ""
    return f"{value:g} GB/s at {size / 2**30:g} GiB{where}"


SLOWER = "hpcstack test STACK --sweep names the slow node; nccl.transport the path"


def judge_baselines(outcome: Outcome, baselines: Mapping[str, Baseline]) -> Outcome:
    """OUTCOME, as a WARN where a figure is below 95 % of what the site expects of it: {CHECK or
    CHECK/FIGURE: what}.
    """
    if outcome.status != "PASS":
        return outcome
    for key, baseline in baselines.items():
        code, _, figure = key.partition("/")
        found = _figure(outcome, figure, baseline.unit) if code == outcome.code else None
        if not found:
            continue
        name, value = found
        less = name.endswith("us")
        limit = baseline.value / SEEN_SHARE if less else baseline.value * SEEN_SHARE
        expected = f"{'<=' if less else '>='} {limit:g} {baseline.unit}".strip()
        if (value > limit) if less else (value < limit):
            said = f"{name} {value:g}, the site expects {baseline.value:g} {baseline.unit}".strip()
            update = {
                "status": "WARN",
                "measured": said,
                "evidence": outcome.measured,
                "remedy": SLOWER,
            }
            return outcome.model_copy(
                update={**update, "expected": expected, "source": baseline.source}
            )
        outcome = outcome.model_copy(update={"expected": expected, "source": baseline.source})
    return outcome


def _figure(outcome: Outcome, name: str, unit: str) -> tuple[str, float] | None:
    """The figure NAME of OUTCOME; without a name that of all_reduce at its largest size, else the
    only one of UNIT.
    """
    if name:
        return (name, outcome.figures[name]) if name in outcome.figures else None
    if found := find_reached(outcome, {"collective": "all_reduce_float32", "min_bytes": 0}):
        return f"all_reduce_float32_{found[0]}_busbw_GB_s", found[1]
    end = unit.replace("/", "_")
    named = [one for one in outcome.figures if one.endswith(end)]
    return (named[0], outcome.figures[named[0]]) if len(named) == 1 else None


def find_reached(outcome: Outcome, gate: dict[str, Any]) -> tuple[int, float] | None:
    """(bytes, GB/s) at the largest size that the gate counts."""
    best = None
    for name, value in outcome.figures.items():
        head, _, _ = name.rpartition("_busbw_GB_s")
        what, _, size = head.rpartition("_")
        if (
            what.startswith(f"{gate['collective']}_")
            and size.isdigit()
            and int(size) >= gate["min_bytes"]
        ):
            best = max(best or (0, 0.0), (int(size), value))
    return best
