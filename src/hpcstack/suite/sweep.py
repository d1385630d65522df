"""A partition in pairs: a job a pair, in rounds in which each node has another partner, and who is odd.

A job array cannot name other nodes for each element, so every pair is a job of its own; Slurm runs those whose nodes
are free, and the sweep takes no more of the cluster than it gets.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpcstack.core.errors import InputError, SlurmError, counted
from hpcstack.core.files import write_text
from hpcstack.render.template import fill
from hpcstack.slurm.jobs import cancel, submit
from hpcstack.store.find import newest_image
from hpcstack_smoke.collectives.pairs import SLOW, odd_ones, tournament

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from hpcstack.core.process import Runner
    from hpcstack.store.store import Store

ONLY = "node,fabric,nccl"
NO_REPORT = "no report"
POLL_S, LOST_S = 3.0, 60.0
WHICH = ("nccl.bandwidth/all_reduce_float32", "nccl.gloo-bandwidth/all_reduce_float32")


@dataclass(frozen=True)
class Pair:
    """Two nodes, the job that measures them, and where its report comes to lie."""

    first: str
    second: str
    report: Path
    job: str = ""


@dataclass
class Swept:
    """What a sweep found: GB/s of each pair, what failed, and for each odd node the reason."""

    nodes: list[str]
    busbw: dict[tuple[str, str], float] = field(default_factory=dict)
    failed: dict[tuple[str, str], str] = field(default_factory=dict)
    odd: dict[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        return {
            "nodes": self.nodes,
            "odd": self.odd,
            "pairs": [{"nodes": list(pair), "busbw_GB_s": value} for pair, value in sorted(self.busbw.items())],
            "failed": [{"nodes": list(pair), "why": why} for pair, why in sorted(self.failed.items())],
        }

    def drain_list(self) -> str:
        """A line a node, as people keep them: NODE, a tab, the reason."""
        return "".join(f"{node}\t{reason}\n" for node, reason in sorted(self.odd.items()))


def check_image(stack: str, store: Store) -> None:
    """InputError where STACK has no image: said before any job is submitted."""
    newest_image(stack, store)


def idle_nodes(runner: Runner, partition: str, nodelist: str) -> list[str]:
    """The nodes of a PARTITION or a NODELIST that could run a job. SlurmError where Slurm does not say."""
    chosen = (["--partition", partition] if partition else []) + (["--nodes", nodelist] if nodelist else [])
    done = runner.output(
        ["sinfo", "--noheader", "--Node", "--responding", "--states=idle,alloc,mix", *chosen, "--format=%N"]
    )
    if done.status:
        raise SlurmError(f"sinfo ended with {done.status}: {done.stdout.strip()}", "hpcstack doctor")
    found = sorted(set(done.stdout.split()))
    if len(found) < 2:
        raise InputError(
            f"{counted(len(found), 'node')} that could run a job: a sweep takes two or more",
            "sinfo; -p PARTITION, -w NODES",
        )
    return found


def submit_pairs(
    nodes: Sequence[str],
    rounds: int,
    folder: Path,
    own: Sequence[str],
    rest: Sequence[str],
    options: Sequence[str],
    runner: Runner,
) -> list[Pair]:
    """A job for each pair of the first ROUNDS of a tournament. OWN are hpcstack's own options, REST those of test."""
    pairs: list[Pair] = []
    for number, round_ in enumerate(tournament(len(nodes))[:rounds]):
        for a, b in round_:
            name = f"{number}-{nodes[a]}-{nodes[b]}"
            report = folder / f"{name}.json"
            mine = ["-N", "2", "-o", str(folder / name), "--json-file", str(report)]
            command = [sys.executable, "-m", "hpcstack", *own, "test", *rest, *mine]
            script = folder / f"{name}.sbatch"
            text = fill(
                "launchers",
                "jobs/sweep.sbatch.j2",
                command=command,
                log=str(folder / f"{name}.log"),
                ended=str(folder / f"{name}.ended"),
                nodes=f"{nodes[a]},{nodes[b]}",
                options=list(options),
            )
            write_text(script, text)
            try:
                pairs.append(Pair(nodes[a], nodes[b], report, submit(script, runner)))
            except SlurmError:
                cancel([pair.job for pair in pairs], runner)
                raise
    return pairs


def follow(pairs: Sequence[Pair], runner: Runner, say: Callable[[str], None]) -> None:
    """Wait for all jobs, and tell of each that ends. Interrupted, the rest are cancelled."""
    left = {pair.job: pair for pair in pairs}
    try:
        while left:
            done = runner.output(["squeue", "--noheader", "--format=%i", "--jobs", ",".join(left)])
            if done.status and "Invalid job id" not in done.stdout:  # slurmctld is busy: ask again
                time.sleep(POLL_S)
                continue
            running = set(done.stdout.split()) if done.status == 0 else set()
            for job in [job for job in left if job not in running]:
                pair = left.pop(job)
                say(f"{len(pairs) - len(left)} of {len(pairs)}: {pair.first} and {pair.second}")
            if left:
                time.sleep(POLL_S)
    except KeyboardInterrupt:
        cancel(list(left), runner)
        raise


def _last_word(log: Path) -> str:
    """The last line of a job's LOG, and where it is."""
    with contextlib.suppress(OSError):
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            lines = [line for line in file.read(4096).decode("utf-8", "replace").splitlines() if line.strip()]
        return f": {lines[-1].strip()[:200] if lines else 'its log is empty'} ({log})"
    return f"; it wrote no log ({log})"


def read(pairs: Sequence[Pair], nodes: Sequence[str]) -> Swept:
    """What the jobs left, judged."""
    swept = Swept(list(nodes))
    for pair in pairs:
        names = (pair.first, pair.second)
        document = _report(pair.report)
        if document is None:
            swept.failed[names] = f"{NO_REPORT}{_last_word(pair.report.with_suffix('.log'))}"
            continue
        if document["verdict"] in ("FAIL", "ERROR"):
            bad = next(one for one in document["outcomes"] if one["status"] in ("FAIL", "ERROR"))
            swept.failed[names] = f"{bad['code']}: {bad['measured'] or bad['evidence']}"[:300]
        if (value := _busbw(document)) is not None:
            swept.busbw[names] = value
    judge(swept)
    return swept


def _report(path: Path) -> dict[str, Any] | None:
    """The report of one pair; a shared filesystem may show it later than Slurm ends the job."""
    until = time.monotonic() + LOST_S
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


def judge(swept: Swept) -> None:
    """Odd: slow with every partner, or failing with every partner while no pair of others fails."""
    index = {node: number for number, node in enumerate(swept.nodes)}
    matrix = {(index[a], index[b]): value for (a, b), value in swept.busbw.items()}
    for number in odd_ones(matrix, len(swept.nodes)):
        node = swept.nodes[number]
        best = max(value for pair, value in matrix.items() if number in pair)
        rest = statistics.median(value for pair, value in matrix.items() if number not in pair)
        swept.odd[node] = f"hpcstack sweep: best pair {best:.3g} GB/s, others' median {rest:.3g} (limit {SLOW:g})"
    for node in swept.nodes:
        own = [pair for pair in (*swept.busbw, *swept.failed) if node in pair]
        bad = [pair for pair in own if not swept.failed.get(pair, NO_REPORT).startswith(NO_REPORT)]
        others = [pair for pair in swept.failed if node not in pair]
        if own and len(bad) == len(set(own)) and len(set(own)) > 1 and not others:
            swept.odd.setdefault(node, f"hpcstack sweep: failed with every partner: {swept.failed[bad[0]]}")


def drain(odd: dict[str, str], runner: Runner) -> list[str]:
    """Drain the nodes of ODD with their reasons; what Slurm refused."""
    refused = []
    for node, reason in sorted(odd.items()):
        done = runner.output(["scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason[:200]}"])
        if done.status:
            refused.append(f"{node}: {' '.join(done.tail)}")
    return refused
