"""Make one `Outcome` for each check from what nodes and ranks left in a run's folder. Pure."""

from __future__ import annotations

import functools
import re
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcstack.core.errors import format_count
from hpcstack.launch.resources import Share
from hpcstack.report import Outcome, merge_rows
from hpcstack.report.model import WORST, is_lower_better
from hpcstack.suite.own_checks import OwnEvidence, make_own_rows
from hpcstack_smoke.agent import import_check
from hpcstack_smoke.result import run_check
from hpcstack_smoke.select import SCOPES, Check

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hpcstack.recipe.own_checks import OwnCheck
    from hpcstack.site.load import NodeType
    from hpcstack_smoke.request import Request
    from hpcstack_smoke.result import Result

# how the last line of a traceback begins, with or without torchrun's mark of the rank
RANK_ERROR = re.compile(r"^(\[rank\d+\]: ?)?\w*(Error|Exception|Interrupt)\b")
# Families whose figures are compared between peers. `io` is none of them: what nodes reach on a
# shared filesystem at the same time differs without any being faulty.
PEER_FAMILIES = ("node",)
LAGS = 0.85  # of the peers' median, its own figure included: whoever is below lags behind
ENOUGH_PEERS = 4  # with fewer a median says nothing
NOT_COMPARED = ("h2d_GB_s", "d2h_GB_s")  # NUMA and shared PCIe switches make healthy GPUs differ
OF_NODES = ("node", "after", "restart")  # scopes in which each node's agent leaves one row


NO_SHARE = Share(gpus=0, ranks=1, cpus=0)


@dataclass(frozen=True)
class SuiteRun:
    """One run of the suite: what it is asked to do, and what hpcstack alone needs to know of it."""

    request: Request  # which the suite in the image reads, too
    share: Share = NO_SHARE  # what it gets of each node
    here: bool = False  # on this machine, without Slurm
    own: Mapping[str, OwnCheck] = field(default_factory=dict)  # {code: own check} that it has
    node_types: tuple[str, ...] = ()  # the site's names for what its nodes may be
    node: NodeType | None = None  # what all of these have; None where the site does not say

    @property
    def node_type(self) -> str:
        """The site's name for its nodes; empty where it does not say, or they may be of several."""
        return self.node_types[0] if len(self.node_types) == 1 else ""

    @property
    def folder(self) -> Path:
        """The folder into which its nodes and ranks write."""
        return Path(self.request.output)

    @property
    def nodes(self) -> int:
        return self.request.nodes

    @property
    def world(self) -> int:
        """How many ranks all nodes have together."""
        return self.request.ranks * self.request.nodes

    def select(self, scope: str) -> list[Check]:
        """Return the checks of SCOPE that it is asked for."""
        return self.request.checks(scope)

    def expected(self, scope: str) -> int:
        """Return how many rows a check of SCOPE has when all have answered."""
        if scope in OF_NODES:
            return self.nodes
        return 1 if scope in ("mpi", "host") else self.world


@dataclass
class RunFiles:
    """All that nodes, tasks and ranks wrote into a run's folder."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)  # nodes whose agent started
    inventory: dict[str, dict[str, Any]] = field(default_factory=dict)  # by host
    running: dict[str, list[str]] = field(default_factory=dict)  # {check: ranks that were in it}
    backend: str = ""
    planted: str = ""  # a bug that the suite's own tests planted
    seen: set[int] = field(default_factory=set)  # ranks of torchrun that started
    own: list[dict[str, Any]] = field(default_factory=list)  # documents of own checks' processes
    runs_own_checks: bool = False  # the suite in the image knows of them
    lost: dict[str, str] = field(default_factory=dict)  # {own check: why its step left nothing}

    def add(self, document: dict[str, Any]) -> None:
        """Add the DOCUMENT of one file.

        What is not one of our rows is left out: whoever should have written it is then missing.
        """
        if "own" in document:
            self.own.append(document)
            return
        self.rows += [row for row in document.get("rows", []) if _is_row(row)]
        self.runs_own_checks = self.runs_own_checks or "runs_own_checks" in document
        if "inventory" in document:
            self.hosts.add(document["host"])
            self.inventory[document["host"]] = document["inventory"]
        self.backend = document.get("backend", self.backend)
        self.planted = document.get("planted", "") or document.get("plant", "") or self.planted
        # only ranks of torchrun write this key; the ranks of tasks are other numbers
        if "planted" in document:
            self.seen.add(int(document["rank"]))

        code = document.get("running")
        if code:
            where = f"{document.get('host', '?')}:{document.get('rank', '?')}"
            self.running.setdefault(code, []).append(where)


def _is_row(row: Any) -> bool:
    """Whether ROW has what every row has, and a status that is known."""
    if not isinstance(row, dict):
        return False
    return {"code", "where", "status"} <= set(row) and row["status"] in WORST


def make_outcomes(run: SuiteRun, found: RunFiles, tail: str) -> list[Outcome]:
    """Return one Outcome for each check that was asked for, in the order of families.

    Nodes or ranks that left nothing are an ERROR of the check, with TAIL as its evidence.
    """
    by_code: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in found.rows:
        by_code[row["code"]].append(row)

    out = []
    for check in _list_checks(run):
        rows = by_code[check.code]
        silent = run.expected(check.scope) - len({row["where"] for row in rows})
        if silent > 0 and not _answers_for_ranks(rows, run):
            rows.append(_make_silent_row(check, run, found, silent, tail))
        out.append(judge_lag(merge_rows(rows), found.inventory))

    evidence = OwnEvidence(found.own, run.node_type, found.runs_own_checks, found.lost)
    for code, own in run.own.items():
        expected = run.nodes if own.on == "nodes" else run.world
        out.append(merge_rows(make_own_rows(code, own, expected, evidence)))

    families = list(dict.fromkeys(one.family for one in out))
    return sorted(out, key=lambda one: families.index(one.family))


def _answers_for_ranks(rows: list[dict[str, Any]], run: SuiteRun) -> bool:
    """Whether ROWS are those of all nodes' agents, which speak for all ranks of their node.

    An agent does so where the image lacks what the check needs.
    """
    hosts = {row["where"] for row in rows}
    return len(hosts) >= run.nodes and all(row.get("for_all_ranks") for row in rows)


def make_host_rows(run: SuiteRun, inventories: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Run the checks of scope `host` here, on the INVENTORIES of all nodes. Return their rows."""
    checks = run.select("host")
    return [
        run_check(check.code, functools.partial(_judge_nodes, check, inventories), "all nodes")
        for check in checks
    ]


def _judge_nodes(check: Check, inventories: dict[str, dict[str, Any]]) -> Result:
    """Import CHECK and run it, so that an import that fails is an error of this check."""
    return import_check(check)(inventories)


def _list_checks(run: SuiteRun) -> Iterable[Check]:
    """Yield all checks that were asked for, in whatever scope."""
    for scope in SCOPES:
        yield from run.select(scope)


def _make_silent_row(
    check: Check, run: SuiteRun, found: RunFiles, silent: int, tail: str
) -> dict[str, Any]:
    """Return an ERROR row that says how many left nothing of CHECK, and who, if that is known.

    Known are ranks that never started, and else ranks that were in the middle of CHECK.
    """
    unit = "node" if check.scope in OF_NODES else "rank"
    what = f"{silent} of {format_count(run.expected(check.scope), unit)} left no result"
    where = "?"
    never = sorted(set(range(run.world)) - found.seen) if check.scope == "ranks" else []
    inside = found.running.get(check.code, [])
    if never and found.seen:
        what += f"; never started: rank {', '.join(map(str, never))}"
        where = f"rank {never[0]}"
    elif inside:
        what += f"; in the middle of it: {', '.join(sorted(inside))}"
    return {
        "code": check.code,
        "where": where,
        "status": "ERROR",
        "measured": what,
        "evidence": tail,
        "remedy": "read launcher-HOST-ROUND.log in the run's folder",
    }


def judge_lag(outcome: Outcome, inventory: dict[str, dict[str, Any]]) -> Outcome:
    """Return OUTCOME as a WARN that names whoever is far below its peers in a rate; else OUTCOME.

    Peers are those with the same model of GPU, by the INVENTORY of their nodes. Rates are figures
    whose names end in `_s`, such as GB_s: more is better.
    """
    if outcome.status != "PASS" or outcome.informational or outcome.family not in PEER_FAMILIES:
        return outcome

    names = {name for figures in outcome.peers.values() for name in figures}
    slow = []
    for name in sorted(names):
        if not name.endswith("_s") or name in NOT_COMPARED:
            continue
        by_gpu: dict[str, dict[str, float]] = defaultdict(dict)
        for where, figures in outcome.peers.items():
            if name in figures:
                host = where.partition(":")[0]
                gpu = inventory.get(host, {}).get("gpu", "")
                by_gpu[gpu][where] = figures[name]
        for values in by_gpu.values():
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


def judge_own_lag(outcome: Outcome) -> Outcome:
    """Return OUTCOME, of an own check, as a WARN that names nodes far behind the others."""
    if outcome.status != "PASS" or not outcome.better:
        return outcome

    slow = []
    for name in sorted(outcome.better):
        values = {where: one[name] for where, one in outcome.peers.items() if name in one}
        if len(values) >= ENOUGH_PEERS:
            slow += find_lagging(values, name, lower=is_lower_better(name, outcome.better))
    if not slow:
        return outcome
    return outcome.model_copy(
        update={
            "status": "WARN",
            "measured": f"lags behind the others: {'; '.join(slow)}",
            "evidence": outcome.measured,
        }
    )


def find_lagging(values: dict[str, float], name: str, *, lower: bool = False) -> list[str]:
    """Return a text for each of VALUES, {where: value}, that is far below their median.

    NAME is the figure's. LOWER: less is better, so that it is far above the median.
    """
    middle = statistics.median(values.values())
    out = []
    for where, value in values.items():
        off = value - middle if lower else middle - value
        if off > (1 - LAGS) * abs(middle):
            out.append(f"{where} {value:g} of {middle:g} {name}")
    return out


def find_telling_line(lines: Iterable[str], last: str) -> str:
    """Return the line that tells most of what went wrong, cut at 400 characters.

    That is the first one of LINES that is a rank's error, else the first with `Error` in it, else
    LAST.
    """
    lines = list(lines)
    for pattern in (RANK_ERROR, re.compile("Error")):
        for line in lines:
            if pattern.search(line):
                return line.strip()[:400]
    return last.strip()[:400]
