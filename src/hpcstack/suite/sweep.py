"""A partition in pairs or by halves: a job a group of nodes, and who is odd.

A job array cannot name other nodes for each element, so every group is a job of its own; Slurm runs
those whose nodes are free, and the sweep takes no more of the cluster than it gets.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpcstack.core.errors import InputError, SlurmError, format_count
from hpcstack.core.files import write_text
from hpcstack.render.template import fill_template
from hpcstack.slurm.jobs import cancel_jobs, submit_job
from hpcstack.store.find import newest_image
from hpcstack.suite.bisect import Bisection, Measured
from hpcstack_smoke.collectives.pairs import SLOW, odd_ones, plan_tournament, slow_pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from hpcstack.core.process import Runner
    from hpcstack.store.store import Store

ONLY = "node,fabric,nccl"
POLL_S, LOST_S = 3.0, 60.0
WHICH = ("nccl.bandwidth/all_reduce_float32", "nccl.gloo-bandwidth/all_reduce_float32")


@dataclass(frozen=True)
class Group:
    """Nodes that run together, the job that measures them, and where its report comes to lie."""

    nodes: tuple[str, ...]
    report: Path
    job: str = ""


@dataclass(frozen=True)
class Command:
    """What each job runs: hpcstack with its OWN options, the REST of `test`, and sbatch's OPTIONS."""

    own: tuple[str, ...]
    rest: tuple[str, ...]
    options: tuple[str, ...]


@dataclass
class Swept:
    """What a sweep found: GB/s of each group, what failed, and for each odd node the reason.

    `together`: the groups that stayed in one NVLink domain; they are judged apart from those that
    crossed the network. `lost`: those whose job left no report, which says nothing of their nodes.
    """

    nodes: list[str]
    busbw: dict[tuple[str, ...], float] = field(default_factory=dict)
    failed: dict[tuple[str, ...], str] = field(default_factory=dict)
    odd: dict[str, str] = field(default_factory=dict)
    together: set[tuple[str, ...]] = field(default_factory=set)
    lost: set[tuple[str, ...]] = field(default_factory=set)
    rounds: int = 0
    unsure: str = ""

    def document(self) -> dict[str, Any]:
        return {
            "nodes": self.nodes,
            "odd": self.odd,
            "rounds": self.rounds,
            "unsure": self.unsure,
            "pairs": [
                {"nodes": list(pair), "busbw_GB_s": value}
                for pair, value in sorted(self.busbw.items())
            ],
            "failed": [
                {"nodes": list(pair), "why": why} for pair, why in sorted(self.failed.items())
            ],
        }

    def drain_list(self) -> str:
        """A line a node, as people keep them: NODE, a tab, the reason."""
        return "".join(f"{node}\t{reason}\n" for node, reason in sorted(self.odd.items()))


def check_image(stack: str, store: Store) -> None:
    """InputError where STACK has no image: said before any job is submitted."""
    newest_image(stack, store)


# Base states of a node that runs or will run jobs, as `sinfo --format=%T` prints them; a sign
# behind one says more
GOOD_STATES, GOOD_SIGNS = ("idle", "mixed", "allocated", "completing", "planned"), "~-+"


def usable_nodes(
    runner: Runner, partition: str, nodelist: str, reservation: str = ""
) -> tuple[list[str], dict[str, str]]:
    """(the nodes of a PARTITION or a NODELIST that could run a job, {those that could not: their
    state}).

    `sinfo --states=idle` has drained nodes too: that is their base state. SlurmError where Slurm
    does not say.
    """
    chosen = (["--partition", partition] if partition else []) + (
        ["--nodes", nodelist] if nodelist else []
    )
    done = runner.output(["sinfo", "--noheader", "--Node", *chosen, "--format=%N %T"])
    if done.status:
        raise SlurmError(
            f"sinfo ended with {done.status}: {done.stdout.strip()}", "hpcstack doctor"
        )
    states = dict(
        line.split(None, 1) for line in done.stdout.splitlines() if len(line.split(None, 1)) == 2
    )
    good = GOOD_STATES + (("reserved",) if reservation else ())
    found = sorted(
        node for node, state in states.items() if state.strip().rstrip(GOOD_SIGNS) in good
    )
    left_out = {node: state.strip() for node, state in sorted(states.items()) if node not in found}
    if len(found) < 2:
        out = (
            f" ({', '.join(f'{node} is {state}' for node, state in list(left_out.items())[:8])})"
            if left_out
            else ""
        )
        raise InputError(
            (
                f"{format_count(len(found), 'node')} that could run a job{out}: a sweep takes two "
                f"or more"
            ),
            "sinfo; -p PARTITION, -w NODES",
        )
    return found, left_out


def pairs_of(nodes: Sequence[str], rounds: int) -> list[tuple[str, ...]]:
    """The pairs of the first ROUNDS of a tournament."""
    return [
        (nodes[a], nodes[b]) for round_ in plan_tournament(len(nodes))[:rounds] for a, b in round_
    ]


def submit_groups(
    groups: Sequence[tuple[str, ...]], folder: Path, name: str, command: Command, runner: Runner
) -> list[Group]:
    """A job for each of GROUPS; NAME begins the names of their files."""
    made: list[Group] = []
    for number, nodes in enumerate(groups):
        stem = f"{name}-{number}-{nodes[0]}-{nodes[-1]}"
        report = folder / f"{stem}.json"
        mine = ["-N", str(len(nodes)), "-o", str(folder / stem), "--json-file", str(report)]
        script = folder / f"{stem}.sbatch"
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
            made.append(Group(nodes, report, submit_job(script, runner)))
        except BaseException:  # interrupted, or a full disk: nothing is left in the queue
            cancel_jobs([group.job for group in made], runner)
            raise
    return made


def follow_jobs(
    groups: Sequence[Group], runner: Runner, say: Callable[[str], None], until: float
) -> dict[str, str]:
    """Wait for all jobs, and tell of each that ends. {job: why} of those that had not by UNTIL
    (monotonic), which are cancelled, as all are where this is interrupted.
    """
    left = {group.job: group for group in groups}
    try:
        while left:
            done = runner.output(
                ["squeue", "--noheader", "--format=%i %T %r", "--jobs", ",".join(left)]
            )
            busy = done.status and "Invalid job id" not in " ".join(
                (done.stdout, *done.tail)
            )  # slurmctld is: ask again
            rows = (
                [line.split(None, 1) for line in done.stdout.splitlines()]
                if done.status == 0
                else []
            )
            running = {row[0]: row[1] if len(row) > 1 else "" for row in rows if row}
            for job in [job for job in left if job not in running and not busy]:
                group = left.pop(job)
                shown = (
                    " and ".join(group.nodes)
                    if len(group.nodes) < 3
                    else f"{group.nodes[0]} to {group.nodes[-1]}"
                )
                say(f"{len(groups) - len(left)} of {len(groups)}: {shown}")
            if left and time.monotonic() > until:
                cancel_jobs(list(left), runner)
                return {
                    job: f"not ended in time ({running.get(job, 'Slurm did not say').strip()})"
                    for job in left
                }
            if left:
                time.sleep(POLL_S)
    except KeyboardInterrupt:
        cancel_jobs(list(left), runner)
        raise
    return {}


def _last_word(log: Path) -> str:
    """The last line of a job's LOG, and where it is."""
    with contextlib.suppress(OSError):
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            lines = [
                line
                for line in file.read(4096).decode("utf-8", "replace").splitlines()
                if line.strip()
            ]
        return f": {lines[-1].strip()[:200] if lines else 'its log is empty'} ({log})"
    return f"; it wrote no log ({log})"


def read_measured(group: Group, late: dict[str, str], until: float) -> Measured:
    """What the job of GROUP left.

    LATE: {job: why it was cancelled}. UNTIL (monotonic): reports are waited for.
    """
    document = _report(group.report, 0.0 if group.job in late else until)
    if document is None:
        why = (
            f": {late[group.job]}"
            if group.job in late
            else _last_word(group.report.with_suffix(".log"))
        )
        return Measured(failed=f"no report{why}", lost=True)
    failed = ""
    if document["verdict"] in ("FAIL", "ERROR"):
        bad = next(one for one in document["outcomes"] if one["status"] in ("FAIL", "ERROR"))
        failed = f"{bad['code']}: {bad['measured'] or bad['evidence']}"[:300]
    domains = {str(node.get("domain") or "") for node in document.get("inventory", {}).values()}
    return Measured(_busbw(document), failed, len(domains) == 1 and domains != {""})


def read_pairs(groups: Sequence[Group], nodes: Sequence[str], late: dict[str, str]) -> Swept:
    """What the jobs left, judged."""
    swept, until = Swept(list(nodes)), time.monotonic() + LOST_S
    for group in groups:
        add_measured(swept, group.nodes, read_measured(group, late, until))
    judge_pairs(swept)
    return swept


def add_measured(swept: Swept, nodes: tuple[str, ...], one: Measured) -> None:
    """What the group of NODES gave."""
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
    say: Callable[[str], None],
    until: float,
) -> Swept:
    """Groups of nodes, the slow ones halved until each bad node is alone with a good one."""
    state, swept = Bisection(tuple(nodes)), Swept(list(nodes))
    while groups := state.next_groups():
        submitted = submit_groups(groups, folder, f"round{state.rounds + 1}", command, runner)
        late = follow_jobs(
            submitted, runner, lambda text: say(f"round {state.rounds + 1}: {text}"), until
        )
        lost = time.monotonic() + LOST_S
        found = {group.nodes: read_measured(group, late, lost) for group in submitted}
        for names, one in found.items():
            add_measured(swept, names, one)
        state.learn(found)
        if late:
            state.unsure = "time was up"
            break
    swept.odd, swept.rounds = state.odd, state.rounds
    left = [node for group in state.suspects for node in group] + state.untold
    swept.unsure = state.unsure and f"{state.unsure}; not told apart: {', '.join(left) or 'none'}"
    return swept


def _report(path: Path, until: float) -> dict[str, Any] | None:
    """The report of one group; a shared filesystem may show it later than Slurm ends the job."""
    while not path.exists() and time.monotonic() < until and path.parent.is_dir():
        if path.with_suffix(".ended").exists():
            break
        time.sleep(0.5)
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


def _busbw(document: dict[str, Any]) -> float | None:
    """The bandwidth at the largest size of the fastest way that was measured."""
    for wanted in WHICH:
        code, _, head = wanted.partition("/")
        for one in document["outcomes"]:
            sizes = {
                int(name.split("_")[-4]): value
                for name, value in one["figures"].items()
                if name.startswith(head) and name.endswith("_busbw_GB_s")
            }
            if one["code"] == code and sizes:
                return float(sizes[max(sizes)])
    return None


def judge_pairs(swept: Swept) -> None:
    """Odd: slow with every partner of a class of pairs, or failing with every partner while no pair
    of others fails.
    """
    index = {node: number for number, node in enumerate(swept.nodes)}
    for together in (True, False):
        matrix = {
            (index[pair[0]], index[pair[1]]): value
            for pair, value in swept.busbw.items()
            if (pair in swept.together) == together
        }
        for number in odd_ones(matrix, len(swept.nodes)):
            best = max(value for pair, value in matrix.items() if number in pair)
            rest = statistics.median(value for pair, value in matrix.items() if number not in pair)
            reason = (
                f"hpcstack sweep: best pair {best:.3g} GB/s, others' median {rest:.3g} (limit "
                f"{SLOW:g})"
            )
            swept.odd[swept.nodes[number]] = reason
    for node in swept.nodes:
        own = [pair for pair in (*swept.busbw, *swept.failed) if node in pair]
        bad = [pair for pair in own if pair in swept.failed and pair not in swept.lost]
        others = [pair for pair in swept.failed if node not in pair]
        if own and len(set(bad)) == len(set(own)) and len(set(own)) > 1 and not others:
            swept.odd.setdefault(
                node, f"hpcstack sweep: failed with every partner: {swept.failed[bad[0]]}"
            )
    swept.unsure = explain_unsure(swept)


def explain_unsure(swept: Swept) -> str:
    """What pairs leave open; empty where nothing."""
    if not swept.busbw and not swept.failed:
        return "no pair gave a bandwidth: --only must name checks that measure one"
    index = {node: number for number, node in enumerate(swept.nodes)}
    open_ = []
    for together in (True, False):
        matrix = {
            (index[pair[0]], index[pair[1]]): value
            for pair, value in swept.busbw.items()
            if (pair in swept.together) == together
        }
        slow = slow_pairs(matrix, [index[node] for node in swept.odd])
        open_ += [f"{swept.nodes[a]} and {swept.nodes[b]}" for a, b in slow]
    return (
        f"slow, and one of both or what is between: {', '.join(open_)}; more --rounds tell"
        if open_
        else ""
    )


def drain_nodes(odd: dict[str, str], runner: Runner) -> list[str]:
    """Drain the nodes of ODD with their reasons; what Slurm refused."""
    refused = []
    for node, reason in sorted(odd.items()):
        done = runner.output(
            ["scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason[:200]}"]
        )
        if done.status:
            refused.append(f"{node}: {' '.join(done.tail)}")
    return refused
