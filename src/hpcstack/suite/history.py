"""A site's own history of figures: append-only JSON lines, one file a stack, and what regressed
against it.

One line a run, written by one `write` of an append: safe between processes, and on a shared
filesystem as far as that keeps appends whole (a torn line is left out). Regression: below the
median of the last N >= 8 comparable runs by more than BOTH 3 * 1.4826 * MAD and 5 %, and by more
than a floor in the figure's own unit.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpcstack.report.model import is_number

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.report import Outcome, Report

ENOUGH, MANY, LAST, SHARE, LEAST_MAD = 8, 20, 50, 0.05, 0.01
# What figures must differ by at least to matter, by the unit that their names end with
FLOORS = {"GB_s": 0.5, "TB_s": 0.02, "TFLOP_s": 5.0, "us": 1.0, "per_s": 10.0}
LESS_IS_BETTER = ("us",)
COMPARED = (*FLOORS, "speedup", "efficiency")


@dataclass(frozen=True)
class Past:
    """One earlier run: when, its key, its figures as {code/name: value}, its report's folder."""

    started: str
    key: str
    figures: dict[str, float]
    verdict: str
    drawn: dict[str, float] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    folder: str = ""
    about: dict[str, Any] = field(default_factory=dict)


def describe_run(report: Report) -> dict[str, Any]:
    """What makes two runs comparable: image, node type, node set, GPU and NIC count, NCCL version,
    ranks, tier.

    GPUs and ports are those that the site promises, else the most that a node of the run has: a
    node that loses one must not begin a history of its own.
    """
    first = next(iter(report.inventory.values()), {})
    most = {
        name: max((node.get(name) or 0 for node in report.inventory.values()), default=0)
        for name in ("gpus", "ports", "rate_gbps")
    }
    promised = report.promised
    transport = next((one for one in report.outcomes if one.code == "nccl.transport"), None)
    nccl = transport.versions.get("nccl", "") if transport else ""
    return {
        "image": report.image_sha256,
        "nodes": list(report.nodes),
        "ranks": report.world_size,
        "tier": report.tier,
        "gpu": first.get("gpu", ""),
        "gpus": promised.get("node_gpus") or most["gpus"],
        "ports": len(promised.get("hcas", ())) or most["ports"],
        "rate_gbps": promised.get("fabric_rate") or most["rate_gbps"],
        "driver": first.get("driver", ""),
        "runtime": report.runtime,
        "nccl": nccl,
        "backend": report.backend,
    }


def make_history_key(report: Report) -> str:
    """A digest of `describe_run`."""
    return hashlib.sha256(json.dumps(describe_run(report), sort_keys=True).encode()).hexdigest()[
        :16
    ]


def list_figures(report: Report) -> dict[str, float]:
    """{code/name: value} of all that was measured and is not only informational."""
    return {
        f"{one.code}/{name}": value
        for one in report.outcomes
        if not one.informational
        for name, value in one.figures.items()
    }


def append_run(path: Path, report: Report, folder: str) -> None:
    """One line more. Every figure is kept for drawing; only those that count are compared."""
    line = {
        "started": report.started,
        "key": make_history_key(report),
        "verdict": report.verdict(),
        "nodes": list(report.nodes),
        "figures": list_figures(report),
        "folder": folder,
        "about": describe_run(report),
        "seconds": report.seconds,
        "all": {
            f"{one.code}/{name}": value
            for one in report.outcomes
            for name, value in one.figures.items()
        },
    }
    data = (json.dumps(line, sort_keys=True) + "\n").encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    data = (b"\n" if _torn(path) else b"") + data
    handle = os.open(
        path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644
    )
    try:
        os.write(handle, data)
    finally:
        os.close(handle)


def _torn(path: Path) -> bool:
    """Whether the last line of PATH was not finished: whoever wrote it was killed."""
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:  # not there yet, or empty
        return False


def load_history(path: Path) -> list[Past]:
    """All runs of a file, oldest first; a line that is torn is left out."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    out = []
    for line in text.splitlines():
        try:
            one = json.loads(line)
            kept, drawn = (
                {name: float(value) for name, value in found.items() if is_number(value)}
                for found in (one["figures"], one.get("all") or one["figures"])
            )
            started, key_, verdict = (str(one[name]) for name in ("started", "key", "verdict"))
            nodes = tuple(map(str, one["nodes"]))
            out.append(
                Past(
                    started,
                    key_,
                    kept,
                    verdict,
                    drawn,
                    nodes,
                    str(one.get("folder", "")),
                    one.get("about", {}),
                )
            )
        except (RecursionError, OverflowError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return sorted(out, key=lambda past: past.started)


def find_allowed_deviation(values: list[float], name: str) -> float:
    """How far from their median a new value may be: the larger of three scaled MADs (four with few
    runs) and 5 %, and at least the floor.
    """
    middle = statistics.median(values)
    mad = statistics.median([abs(value - middle) for value in values])
    floor = next((floor for unit, floor in FLOORS.items() if name.endswith(unit)), 0.0)
    scaled = 1.4826 * max(mad, LEAST_MAD * abs(middle))  # eight runs may be alike by chance
    return max((3 if len(values) >= MANY else 4) * scaled, SHARE * abs(middle), floor)


SIZED = re.compile(r"(?P<what>.+)_(?P<size>\d+)_(?:busbw_GB_s|us)")


def list_compared(figures: dict[str, float]) -> dict[str, float]:
    """Those of FIGURES that are held against the past: of one collective at many sizes the largest
    alone, as each more figure is one more chance to be wrong.
    """
    largest: dict[str, int] = {}
    for name in figures:
        if match := SIZED.fullmatch(name):
            largest[match["what"]] = max(largest.get(match["what"], 0), int(match["size"]))
    out = {}
    for name, value in figures.items():
        match = SIZED.fullmatch(name)
        if name.endswith(COMPARED) and (not match or int(match["size"]) == largest[match["what"]]):
            out[name] = value
    return out


def judge_regression(outcome: Outcome, pasts: list[Past]) -> Outcome:
    """OUTCOME, as a WARN where a figure is worse than this site's own history of it."""
    if outcome.status != "PASS" or outcome.informational:
        return outcome
    worse = []
    for name, value in list_compared(outcome.figures).items():
        past = [
            one.figures[f"{outcome.code}/{name}"]
            for one in pasts
            if f"{outcome.code}/{name}" in one.figures
        ][-LAST:]
        if len(past) < ENOUGH:
            continue
        middle, room = statistics.median(past), find_allowed_deviation(past, name)
        off = value - middle if name.endswith(LESS_IS_BETTER) else middle - value
        if off > room:
            worse.append(f"{name} {value:g}, median of {len(past)} runs {middle:g}")
    if not worse:
        return outcome
    return outcome.model_copy(
        update={
            "status": "WARN",
            "measured": f"worse than before: {'; '.join(worse)}",
            "evidence": outcome.measured,
            "expected": "within 3 scaled MADs and 5 % of the median",
            "source": "this site's own history (hpcstack report --history)",
            "remedy": (
                "hpcstack test STACK --sweep compares the nodes; what changed: driver, firmware, "
                "neighbours?"
            ),
        }
    )
