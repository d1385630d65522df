"""Sweep a partition: measure groups of its nodes, as pairs or by halves, to find which are odd.

A job array cannot name other nodes for each element, so every group is a job of its own. Slurm runs
those whose nodes are free, and the sweep takes no more of the cluster than it gets.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpcstack.core.errors import InputError, format_count
from hpcstack.core.files import write_text
from hpcstack.render.template import fill_template
from hpcstack.slurm.client import Client
from hpcstack.suite.bisect import Bisection, Measured
from hpcstack_smoke.collectives.pairs import SLOW, find_odd_ones, find_slow_pairs, plan_tournament

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hpcstack.core.process import Runner
    from hpcstack.core.progress import Say

ONLY = "node,fabric,nccl"  # what a sweep tests, unless it is told
POLL_S = 3.0  # between two looks at the queue
LOST_S = 60.0  # for the reports of jobs that have ended
# CHECK/COLLECTIVE whose bandwidth is compared: the first one that was measured
WHICH = ("nccl.bandwidth/all_reduce_float32", "nccl.gloo-bandwidth/all_reduce_float32")


@dataclass(frozen=True)
class Group:
    """Nodes that are measured together, by one job."""

    nodes: tuple[str, ...]
    report: Path  # that the job will write
    job: str = ""  # its id


@dataclass(frozen=True)
class Command:
    """What each job runs: `hpcstack OWN test REST`, submitted with sbatch's OPTIONS."""

    own: tuple[str, ...]
    rest: tuple[str, ...]
    options: tuple[str, ...]


@dataclass
class Swept:
    """What a sweep found."""

    nodes: list[str]
    busbw: dict[tuple[str, ...], float] = field(default_factory=dict)  # GB/s of each group
    failed: dict[tuple[str, ...], str] = field(default_factory=dict)  # why a group failed
    odd: dict[str, str] = field(default_factory=dict)  # why a node is odd
    # Groups that stayed in one NVLink domain. They are judged apart from those that crossed the
    # network.
    together: set[tuple[str, ...]] = field(default_factory=set)
    # groups whose job left no report, which says nothing of their nodes
    lost: set[tuple[str, ...]] = field(default_factory=set)
    rounds: int = 0
    unsure: str = ""  # what the sweep could not find out

    def document(self) -> dict[str, Any]:
        """Return it as JSON is to show it."""
        pairs = [
            {"nodes": list(pair), "busbw_GB_s": value} for pair, value in sorted(self.busbw.items())
        ]
        failed = [{"nodes": list(pair), "why": why} for pair, why in sorted(self.failed.items())]
        return {
            "nodes": self.nodes,
            "odd": self.odd,
            "rounds": self.rounds,
            "unsure": self.unsure,
            "pairs": pairs,
            "failed": failed,
        }

    def drain_list(self) -> str:
        """Return a line for each odd node: its name, a tab, the reason."""
        return "".join(f"{node}\t{reason}\n" for node, reason in sorted(self.odd.items()))


# states of a node that runs or will run jobs, as `sinfo --format=%T` prints them
GOOD_STATES = ("idle", "mixed", "allocated", "completing", "planned")
GOOD_SIGNS = "~-+"  # that may follow such a state; other signs tell of trouble


def find_usable_nodes(
    runner: Runner, partition: str, nodelist: str, reservation: str = ""
) -> tuple[list[str], dict[str, str]]:
    """Ask Slurm which nodes of a PARTITION or NODELIST could run a job.

    Return (these nodes, {each other node: its state}). SlurmError where Slurm does not say,
    InputError where fewer than two nodes could. `sinfo --states=idle` would not do: it lists
    drained nodes, too, whose base state that is.
    """
    states = Client(runner).query_node_states(partition, nodelist)

    good: tuple[str, ...] = GOOD_STATES
    if reservation:
        good += ("reserved",)
    found = sorted(node for node, state in states.items() if state.rstrip(GOOD_SIGNS) in good)
    left_out = {node: state for node, state in sorted(states.items()) if node not in found}
    if len(found) < 2:
        others = ", ".join(f"{node} is {state}" for node, state in list(left_out.items())[:8])
        others = f" ({others})" if others else ""
        count = format_count(len(found), "node")
        raise InputError(
            f"only {count} could run a job{others}: a sweep needs two or more",
            "see sinfo; choose others with -p PARTITION or -w NODES",
            page="name-the-slow-node",
        )
    return found, left_out


def plan_pairs(nodes: Sequence[str], rounds: int) -> list[tuple[str, ...]]:
    """Return the pairs of NODES in the first ROUNDS of a tournament."""
    plan = plan_tournament(len(nodes))[:rounds]
    return [(nodes[a], nodes[b]) for round_ in plan for a, b in round_]


def submit_groups(
    groups: Sequence[tuple[str, ...]], folder: Path, name: str, command: Command, runner: Runner
) -> list[Group]:
    """Submit a job for each of GROUPS. NAME begins the names of their files in FOLDER.

    Where one cannot be submitted, those before it are cancelled.
    """
    slurm = Client(runner)
    made: list[Group] = []
    for number, nodes in enumerate(groups):
        stem = f"{name}-{number}-{nodes[0]}-{nodes[-1]}"
        report = folder / f"{stem}.json"
        script = folder / f"{stem}.sbatch"
        mine = ["-N", str(len(nodes)), "-o", str(folder / stem), "--json-file", str(report)]
        text = fill_template(
            "launchers",
            "jobs/sweep.sbatch.j2",
            command=[*command.own, "test", *command.rest, *mine],
            log=str(folder / f"{stem}.log"),
            ended=str(folder / f"{stem}.ended"),
            nodes=",".join(nodes),
            count=len(nodes),
            options=list(command.options),
        )

        write_text(script, text)
        try:
            made.append(Group(nodes, report, slurm.submit_job(script)))
        # also at an interrupt: nothing may be left in the queue
        except BaseException:
            slurm.abandon([group.job for group in made])
            raise
    return made


def follow_jobs(groups: Sequence[Group], runner: Runner, say: Say, until: float) -> dict[str, str]:
    """Wait for the jobs of GROUPS, and tell of each that ends.

    Return {job: why} of those that had not ended by UNTIL (monotonic), which are cancelled. An
    interrupt cancels all that are left, too.
    """
    slurm = Client(runner)
    left = {group.job: group for group in groups}
    try:
        while left:
            queued = slurm.query_queue(left)
            ended = []
            if queued is not None:
                in_queue = {job.name for job in queued}
                ended = [job for job in left if job not in in_queue]
            for job in ended:
                group = left.pop(job)
                say(f"{len(groups) - len(left)} of {len(groups)}: {_name_nodes(group.nodes)}")
            if not left:
                break

            if time.monotonic() > until:
                slurm.abandon(left)
                known = {job.name: f"{job.state} {job.reason}" for job in queued or ()}
                return {
                    job: f"not ended in time ({known.get(job, 'Slurm did not say')})"
                    for job in left
                }
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        slurm.abandon(left)
        raise
    return {}


def _name_nodes(nodes: tuple[str, ...]) -> str:
    """Return NODES as progress shows them: both, or the first and the last."""
    if len(nodes) < 3:
        return " and ".join(nodes)
    return f"{nodes[0]} to {nodes[-1]}"


def _quote_log(log: Path) -> str:
    """Return the last line of a job's LOG and where it is, to follow a message."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            text = file.read(4096).decode("utf-8", "replace")
    except OSError:
        return f"; it wrote no log ({log})"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return f": its log is empty ({log})"
    return f": {lines[-1][:200]} ({log})"


def read_measured(group: Group, late: dict[str, str], until: float) -> Measured:
    """Return what the job of GROUP found.

    LATE is {job: why it was cancelled}. A report that is not there yet is waited for until UNTIL
    (monotonic).
    """
    was_late = group.job in late
    document = _read_report(group.report, 0.0 if was_late else until)
    if document is None:
        why = f": {late[group.job]}" if was_late else _quote_log(group.report.with_suffix(".log"))
        return Measured(failed=f"no report{why}", lost=True)

    failed = ""
    if document["verdict"] in ("FAIL", "ERROR"):
        bad = next(one for one in document["outcomes"] if one["status"] in ("FAIL", "ERROR"))
        failed = f"{bad['code']}: {bad['measured'] or bad['evidence']}"[:300]
    domains = {str(node.get("domain") or "") for node in document.get("inventory", {}).values()}
    together = len(domains) == 1 and domains != {""}
    return Measured(_find_busbw(document), failed, together)


def read_pairs(groups: Sequence[Group], nodes: Sequence[str], late: dict[str, str]) -> Swept:
    """Read what the jobs of GROUPS, pairs of NODES, found, and judge it."""
    swept = Swept(list(nodes))
    until = time.monotonic() + LOST_S
    for group in groups:
        add_measured(swept, group.nodes, read_measured(group, late, until))
    judge_pairs(swept)
    return swept


def add_measured(swept: Swept, nodes: tuple[str, ...], one: Measured) -> None:
    """Add to SWEPT what the group of NODES measured."""
    if one.failed:
        swept.failed[nodes] = one.failed
    if one.lost:
        swept.lost.add(nodes)
    if one.busbw is not None:
        swept.busbw[nodes] = one.busbw
    if one.together:
        swept.together.add(nodes)


def bisect_nodes(
    nodes: Sequence[str],
    folder: Path,
    command: Command,
    runner: Runner,
    say: Say,
    until: float,
) -> Swept:
    """Measure groups of NODES and halve the slow ones, until each bad node is found.

    At UNTIL (monotonic) it ends: then `unsure` says which nodes are left.
    """
    state = Bisection(tuple(nodes))
    swept = Swept(list(nodes))
    while groups := state.next_groups():
        number = state.rounds + 1
        submitted = submit_groups(groups, folder, f"round{number}", command, runner)
        late = follow_jobs(submitted, runner, _with_prefix(say, f"round {number}: "), until)
        lost = time.monotonic() + LOST_S
        found = {group.nodes: read_measured(group, late, lost) for group in submitted}
        for names, one in found.items():
            add_measured(swept, names, one)
        state.learn(found)
        if late:
            state.unsure = "time was up"
            break

    swept.odd = state.odd
    swept.rounds = state.rounds
    if state.unsure:
        left = [node for group in state.suspects for node in group] + state.untold
        swept.unsure = f"{state.unsure}; not told apart: {', '.join(left) or 'none'}"
    return swept


def _with_prefix(say: Say, prefix: str) -> Say:
    """Return a SAY that puts PREFIX before each line."""
    return lambda text: say(f"{prefix}{text}")


def _read_report(path: Path, until: float) -> dict[str, Any] | None:
    """Return the report at PATH; None where there is none that can be read.

    A shared filesystem may show it only after Slurm has ended the job, so it is waited for until
    UNTIL (monotonic), or until the job's script has written that it ended.
    """
    while not path.exists() and time.monotonic() < until and path.parent.is_dir():
        if path.with_suffix(".ended").exists():
            break
        time.sleep(0.5)
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


def _find_busbw(document: dict[str, Any]) -> float | None:
    """Return the bandwidth at the largest size, of the first one of WHICH that was measured."""
    for wanted in WHICH:
        code, _, head = wanted.partition("/")
        for one in document["outcomes"]:
            if one["code"] != code:
                continue
            sizes = {}
            for name, value in one["figures"].items():
                # COLLECTIVE_SIZE_busbw_GB_s
                if name.startswith(head) and name.endswith("_busbw_GB_s"):
                    sizes[int(name.split("_")[-4])] = value
            if sizes:
                return float(sizes[max(sizes)])
    return None


def _make_matrix(swept: Swept, *, together: bool) -> dict[tuple[int, int], float]:
    """Return {the numbers of a pair's nodes: GB/s} of the pairs of one class.

    TOGETHER: those within an NVLink domain; else those that crossed the network.
    """
    number = {node: place for place, node in enumerate(swept.nodes)}
    matrix = {}
    for pair, value in swept.busbw.items():
        if (pair in swept.together) == together:
            matrix[number[pair[0]], number[pair[1]]] = value
    return matrix


def judge_pairs(swept: Swept) -> None:
    """Find the odd nodes of SWEPT, and what pairs leave open.

    A node is odd that is slow with every partner of a class of pairs, or that fails with every
    partner while no pair of others fails.
    """
    for together in (True, False):
        matrix = _make_matrix(swept, together=together)
        for number in find_odd_ones(matrix, len(swept.nodes)):
            best = max(value for pair, value in matrix.items() if number in pair)
            rest = statistics.median(value for pair, value in matrix.items() if number not in pair)
            reason = f"best pair {best:.3g} GB/s, others' median {rest:.3g} (limit {SLOW:g})"
            swept.odd[swept.nodes[number]] = f"hpcstack sweep: {reason}"

    pairs = dict.fromkeys((*swept.busbw, *swept.failed))  # each once: some are in both
    for node in swept.nodes:
        own = [pair for pair in pairs if node in pair]
        bad = [pair for pair in own if pair in swept.failed and pair not in swept.lost]
        others = [pair for pair in swept.failed if node not in pair]
        if len(own) > 1 and len(bad) == len(own) and not others:
            reason = f"failed with every partner: {swept.failed[bad[0]]}"
            swept.odd.setdefault(node, f"hpcstack sweep: {reason}")
    swept.unsure = explain_unsure(swept)


def explain_unsure(swept: Swept) -> str:
    """Return what the pairs of SWEPT leave open, in words; empty where nothing."""
    if not swept.busbw and not swept.failed:
        return "no pair gave a bandwidth: --only must name checks that measure one"

    odd = [swept.nodes.index(node) for node in swept.odd]
    slow = []
    for together in (True, False):
        pairs = find_slow_pairs(_make_matrix(swept, together=together), odd)
        slow += [f"{swept.nodes[a]} and {swept.nodes[b]}" for a, b in pairs]
    if not slow:
        return ""
    pairs_said = ", ".join(slow)
    return (
        f"slow pairs, by either node or by what is between them: {pairs_said}; more --rounds tell"
    )


def drain_nodes(odd: dict[str, str], runner: Runner) -> list[str]:
    """Drain each node of ODD, {node: reason}. Return what Slurm refused, in words."""
    slurm = Client(runner)
    refused = []
    for node, reason in sorted(odd.items()):
        refusal = slurm.drain(node, reason)
        if refusal:
            refused.append(f"{node}: {refusal}")
    return refused
