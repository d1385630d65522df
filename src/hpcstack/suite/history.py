"""A site's own history of figures, and which figures of a run are worse than it.

A stack's history is a file of JSON lines, one for each run, which is only appended to. A line is
written by one `write`: safe between processes, and on a shared filesystem as far as that keeps
appends whole (a torn line is left out when the file is read).

A figure has regressed if it is worse than the median of at least 8 comparable runs by more than
each of three things: some MADs, scaled by 1.4826 to a standard deviation; 5 % of the median; and a
floor in the figure's own unit.

Tested in tests/unit/suite/test_judge.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpcstack.recipe.own_checks import DEFINITION
from hpcstack.report.model import is_lower_better, is_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from hpcstack.report import Outcome, Report

ENOUGH = 8  # comparable runs; with fewer nothing is compared
MANY = 20  # runs from which three MADs are allowed, not four
LAST = 50  # so many runs are looked at
SHARE = 0.05  # of the median, that a figure may always be off
LEAST_MAD = 0.01  # of the median: a few runs may be alike by chance
# what figures must differ by at least to matter, by the unit that their names end with
FLOORS = {"GB_s": 0.5, "TB_s": 0.02, "TFLOP_s": 5.0, "us": 1.0, "per_s": 10.0}
COMPARED = (*FLOORS, "speedup", "efficiency")


@dataclass(frozen=True)
class Past:
    """One earlier run, as the history has it."""

    started: str
    key: str  # of runs that can be compared
    figures: dict[str, float]  # {code/name: value} of those that count
    verdict: str
    drawn: dict[str, float] = field(default_factory=dict)  # the same of all figures
    nodes: tuple[str, ...] = ()
    folder: str = ""  # of its report
    about: dict[str, Any] = field(default_factory=dict)  # what the key is made of


def describe_run(report: Report) -> dict[str, Any]:
    """Return what two runs must have in common to be compared.

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
    """Return a digest of `describe_run`, of 16 characters."""
    text = json.dumps(describe_run(report), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def list_figures(report: Report) -> dict[str, float]:
    """Return {code/name: value} of all that was measured and is not only informational."""
    return _collect_figures(one for one in report.outcomes if not one.informational)


def _collect_figures(outcomes: Iterable[Outcome]) -> dict[str, float]:
    """Return {code/name: value} of all figures of OUTCOMES."""
    out = {}
    for one in outcomes:
        for name, value in one.figures.items():
            out[name_past_figure(one, name)] = value
    return out


def name_past_figure(outcome: Outcome, name: str) -> str:
    """Return what a history calls the figure NAME of OUTCOME.

    That of an own check has its definition in it: what it measured by another one is another thing.
    """
    definition = outcome.versions.get(DEFINITION)
    return f"{outcome.code}@{definition}/{name}" if definition else f"{outcome.code}/{name}"


def append_run(path: Path, report: Report, folder: str) -> None:
    """Append a line for REPORT, whose files are in FOLDER, to the history at PATH.

    It has the figures that count twice: those, which are compared, and all, which are drawn.
    """
    line = {
        "started": report.started,
        "key": make_history_key(report),
        "verdict": report.verdict(),
        "nodes": list(report.nodes),
        "figures": list_figures(report),
        "folder": folder,
        "about": describe_run(report),
        "seconds": report.seconds,
        "all": _collect_figures(report.outcomes),
    }

    data = (json.dumps(line, sort_keys=True) + "\n").encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    # a line that another process did not finish must not swallow this one
    if _is_torn(path):
        data = b"\n" + data
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    handle = os.open(path, flags, 0o644)
    try:
        os.write(handle, data)
    finally:
        os.close(handle)


def _is_torn(path: Path) -> bool:
    """Whether the last line of PATH was not finished, as whoever wrote it was killed."""
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:  # not there yet, or empty
        return False


def load_history(path: Path) -> list[Past]:
    """Return all runs of the history at PATH, oldest first. Lines that are torn are left out."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    out = []
    for line in text.splitlines():
        # whatever a line holds that `append_run` does not write
        with contextlib.suppress(
            RecursionError, OverflowError, ValueError, KeyError, TypeError, AttributeError
        ):
            out.append(_read_line(json.loads(line)))
    return sorted(out, key=lambda past: past.started)


def _read_line(one: Any) -> Past:
    """Return the run that ONE, a line of a history, is."""
    figures = one["figures"]
    drawn = one.get("all") or figures
    return Past(
        started=str(one["started"]),
        key=str(one["key"]),
        figures={name: float(value) for name, value in figures.items() if is_number(value)},
        verdict=str(one["verdict"]),
        drawn={name: float(value) for name, value in drawn.items() if is_number(value)},
        nodes=tuple(map(str, one["nodes"])),
        folder=str(one.get("folder", "")),
        about=one.get("about", {}),
    )


def find_allowed_deviation(values: list[float], name: str) -> float:
    """Return how far from the median of VALUES a new value of the figure NAME may be.

    That is the largest of three scaled MADs (four with few runs), 5 % of the median, and the floor
    of the figure's unit.
    """
    middle = statistics.median(values)
    mad = statistics.median([abs(value - middle) for value in values])
    scaled = 1.4826 * max(mad, LEAST_MAD * abs(middle))
    mads = 3 if len(values) >= MANY else 4
    floor = next((floor for unit, floor in FLOORS.items() if name.endswith(unit)), 0.0)
    return max(mads * scaled, SHARE * abs(middle), floor)


# names of figures of one collective at many sizes
SIZED = re.compile(r"(?P<what>.+)_(?P<size>\d+)_(?:busbw_GB_s|us)")


def list_compared(figures: dict[str, float], better: Mapping[str, str]) -> dict[str, float]:
    """Return those of FIGURES that are compared with the past: all in BETTER, others by their unit.

    Of one collective at many sizes that is the largest size alone: each more figure is one more
    chance of a false alarm.
    """
    largest: dict[str, int] = {}
    for name in figures:
        match = SIZED.fullmatch(name)
        if match:
            largest[match["what"]] = max(largest.get(match["what"], 0), int(match["size"]))

    out = {}
    for name, value in figures.items():
        match = SIZED.fullmatch(name)
        is_largest = not match or int(match["size"]) == largest[match["what"]]
        if name in better or (name.endswith(COMPARED) and is_largest):
            out[name] = value
    return out


def judge_regression(outcome: Outcome, pasts: list[Past]) -> Outcome:
    """Return OUTCOME as a WARN where a figure is worse than in PASTS; else as it is."""
    if outcome.status != "PASS" or outcome.informational:
        return outcome

    worse = []
    for name, value in list_compared(outcome.figures, outcome.better).items():
        key = name_past_figure(outcome, name)
        past = [one.figures[key] for one in pasts if key in one.figures][-LAST:]
        if len(past) < ENOUGH:
            continue
        middle = statistics.median(past)
        off = value - middle if is_lower_better(name, outcome.better) else middle - value
        if off > find_allowed_deviation(past, name):
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
            "remedy": "hpcstack test STACK --sweep compares the nodes; what changed: driver, "
            "firmware, neighbours?",
        }
    )
