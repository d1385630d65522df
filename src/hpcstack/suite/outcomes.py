"""What nodes and ranks left in a run's folder, as one Outcome a check. Pure."""

from __future__ import annotations

import functools
import re
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpcstack.core.errors import format_count
from hpcstack.report import Outcome, merge_rows
from hpcstack.report.model import WORST
from hpcstack_smoke.agent import import_check
from hpcstack_smoke.result import run_check
from hpcstack_smoke.select import SCOPES, Check, select_checks

if TYPE_CHECKING:
    from collections.abc import Iterable

RANK_ERROR = re.compile(r"^(\[rank\d+\]: ?)?\w*(Error|Exception|Interrupt)\b")
PEER_FAMILIES = ("node",)  # what nodes do at once on a shared filesystem differs for other reasons
LAGS, ENOUGH_PEERS = 0.85, 4
NOT_COMPARED = ("h2d_GB_s", "d2h_GB_s")  # NUMA and shared PCIe switches make healthy GPUs differ


@dataclass(frozen=True)
class Size:
    """What was asked for: checks, tier, and how many nodes and ranks there are."""

    nodes: int
    world: int
    tests: str = ""
    tier: str = "quick"
    skip: str = ""

    def expected(self, scope: str) -> int:
        """How many rows a check of SCOPE has when all answer."""
        if scope in ("node", "after", "restart"):
            return self.nodes
        return 1 if scope in ("mpi", "host") else self.world


@dataclass
class RunFiles:
    """All that nodes and ranks wrote."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)
    inventory: dict[str, dict[str, Any]] = field(default_factory=dict)
    running: dict[str, list[str]] = field(default_factory=dict)
    backend: str = ""
    planted: str = ""
    seen: set[int] = field(default_factory=set)

    def add(self, document: dict[str, Any]) -> None:
        """One file's document.

        What is no row of ours is left out: whoever should have written it is then missing.
        """
        self.rows += [row for row in document.get("rows", []) if _is_row(row)]
        if "inventory" in document:
            self.hosts.add(document["host"])
            self.inventory[document["host"]] = document["inventory"]
        self.backend = document.get("backend", self.backend)
        self.planted = document.get("planted", "") or document.get("plant", "") or self.planted
        if "planted" in document:  # a rank of torchrun's; tasks have numbers of their own
            self.seen.add(int(document["rank"]))
        if code := document.get("running"):
            self.running.setdefault(code, []).append(
                f"{document.get('host', '?')}:{document.get('rank', '?')}"
            )


def _is_row(row: Any) -> bool:
    return (
        isinstance(row, dict) and {"code", "where", "status"} <= set(row) and row["status"] in WORST
    )


def make_outcomes(size: Size, found: RunFiles, tail: str) -> list[Outcome]:
    """One Outcome a check that was asked for; a node or rank that left nothing is an ERROR of that
    check.
    """
    by_code: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in found.rows:
        by_code[row["code"]].append(row)
    out = []
    for check in _asked(size):
        rows = by_code[check.code]
        answered = {row["where"] for row in rows}
        silent = size.expected(check.scope) - len(answered)
        everywhere = rows and len({row["where"].partition(":")[0] for row in rows}) >= size.nodes
        whole_image = everywhere and all(
            ":" not in row["where"] for row in rows
        )  # the agent's word for all its ranks
        if silent > 0 and not whole_image:
            rows.append(_silent(check, size, found, silent, tail))
        out.append(judge_lag(merge_rows(rows), found.inventory))
    order = {family: place for place, family in enumerate(dict.fromkeys(one.family for one in out))}
    return sorted(out, key=lambda one: order[one.family])


def host_rows(size: Size, inventories: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the checks that are made here, of what all nodes left."""
    checks = select_checks(size.tests, "host", size.tier, size.skip)
    return [
        run_check(check.code, functools.partial(_judge_nodes, check, inventories), "all nodes")
        for check in checks
    ]


def _judge_nodes(check: Check, inventories: dict[str, dict[str, Any]]) -> Any:
    return import_check(check)(inventories)


def _asked(size: Size) -> Iterable[Check]:
    for scope in SCOPES:
        yield from select_checks(size.tests, scope, size.tier, size.skip)


def _silent(check: Check, size: Size, found: RunFiles, silent: int, tail: str) -> dict[str, Any]:
    """Who left nothing of CHECK: ranks that never came, ranks that were in the middle of it, or
    just how many.
    """
    unit = "node" if check.scope in ("node", "after", "restart") else "rank"
    what = f"{silent} of {format_count(size.expected(check.scope), unit)} left no result"
    never = sorted(set(range(size.world)) - found.seen) if check.scope == "ranks" else []
    if never and found.seen:
        what += f"; never started: rank {', '.join(map(str, never))}"
    elif inside := found.running.get(check.code, []):
        what += f"; in the middle of it: {', '.join(sorted(inside))}"
    where = f"rank {never[0]}" if never and found.seen else "?"
    return {
        "code": check.code,
        "where": where,
        "status": "ERROR",
        "measured": what,
        "evidence": tail,
        "remedy": "read launcher-HOST-ROUND.log in the run's folder",
    }


def judge_lag(outcome: Outcome, inventory: dict[str, dict[str, Any]]) -> Outcome:
    """A WARN that names whoever is far below the others of the run in a figure of which more is
    better.

    Others are those with the same model of GPU, by the INVENTORY of their nodes.
    """
    if outcome.status != "PASS" or outcome.informational or outcome.family not in PEER_FAMILIES:
        return outcome
    slow = []
    for name in sorted(
        {name for figures in outcome.peers.values() for name in figures if name.endswith("_s")}
    ):
        if name in NOT_COMPARED:
            continue
        kinds: dict[str, dict[str, float]] = defaultdict(dict)
        for where, figures in outcome.peers.items():
            if name in figures:
                kinds[inventory.get(where.partition(":")[0], {}).get("gpu", "")][where] = figures[
                    name
                ]
        for values in kinds.values():
            if len(values) >= ENOUGH_PEERS:
                slow += find_lagging(values, name)
    if not slow:
        return outcome
    said = f"lags behind the others: {'; '.join(slow)}; {outcome.measured}"
    return outcome.model_copy(
        update={
            "status": "WARN",
            "measured": said,
            "source": "peers in the same run",
            "expected": f">= {LAGS:.0%} of the others' median",
        }
    )


def find_lagging(values: dict[str, float], name: str) -> list[str]:
    """Whose value of the figure NAME is far below the median."""
    middle = statistics.median(values.values())
    return [
        f"{where} {value:g} of {middle:g} {name}"
        for where, value in values.items()
        if value < LAGS * middle
    ]


def find_telling_line(lines: Iterable[str], last: str) -> str:
    """The line that tells most: the first error of a rank, else of its launcher, else the LAST one."""
    lines = list(lines)
    for pattern in (RANK_ERROR, re.compile("Error")):
        if found := next((line for line in lines if pattern.search(line)), ""):
            return found.strip()[:400]
    return last.strip()[:400]
