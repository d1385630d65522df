"""Test: the smoke suite in the image, as one job step over the nodes, and the report made of what it left."""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hpcstack.errors import SlurmError
from hpcstack.launch import Plan, Resources, Share, plan, share
from hpcstack.launch.cluster import allocation
from hpcstack.launch.record import state_folder
from hpcstack.process import Completed, Runner
from hpcstack.render.launcher import inner
from hpcstack.render.steps import HOME
from hpcstack.report import Outcome, Report, worst
from hpcstack.runtimes import choose
from hpcstack.site import Site
from hpcstack.spec.model import Stack
from hpcstack.store import Artifact, Store, write_text, write_tree
from hpcstack_smoke import __version__ as suite_version
from hpcstack_smoke.select import CODES, selected

Say = Callable[[str], None]
RANK_ERROR = re.compile(r"^(\[rank\d+\]: ?)?\w*(Error|Exception|Interrupt)\b")
SUITE = f"{HOME}/smoke"
CPU_RANKS = 2


@dataclass(frozen=True)
class Run:
    """One run of the suite: where it writes, which checks it was asked for, on how many ranks."""

    folder: Path
    tests: str
    ranks_per_node: int
    nodes: int
    share: Share
    here: bool = False

    @property
    def world(self) -> int:
        return self.ranks_per_node * self.nodes


def prepare(
    stack: Stack, tests: tuple[str, ...], resources: Resources, site: Site, parent: Path | None, *, here: bool
) -> Run:
    """A new folder for a run. Nodes without real GPUs get two ranks: enough to talk within a node and between."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    folder = (parent or state_folder() / "tests" / stack.full_name) / f"{stamp}-{uuid.uuid4().hex[:6]}"
    with Store(site.store).acting("no folder for the run"):
        folder.mkdir(parents=True)
    taken = share(resources, site, allocation(os.environ), here=here)
    ranks = taken.ranks if taken.gpus else resources.nproc_per_node or CPU_RANKS
    return Run(folder, ",".join(tests or stack.tests), ranks, resources.nodes, taken, here)


def step_plan(
    run: Run, artifact: Artifact, resources: Resources, site: Site, runner: Runner, *, runtime: str, suite: Path | None
) -> Plan:
    """The job step of one run: an agent a node, which starts the ranks there. SUITE is the caller's own, if given."""
    own = artifact.environment.get("PYTHONPATH", "")
    where = ":".join(filter(None, (str(suite) if suite else SUITE, own)))
    arguments = ("--output", str(run.folder), "--tests", run.tests, "--gpus", str(run.share.gpus))
    launcher = ("/bin/sh", "-c", inner("torchrun"), "torchrun", str(run.ranks_per_node), "", "0")
    agent = ("python3", "-m", "hpcstack_smoke", *arguments, "--stack", artifact.stack)
    command = (*agent, "--", *launcher, "-m", "hpcstack_smoke.ranks", *arguments)
    alone = replace(resources, nproc_per_node=0, ntasks_per_node=0)
    one_a_node = replace(alone, ntasks_per_node=1, cpus_per_task=run.share.cpus) if not run.here else alone
    return plan(
        artifact, command, "plain", one_a_node, site, runner,
        runtime=runtime, workdir=run.folder, mounts=(f"{suite}:{suite}",) if suite else (),
        environment={"PYTHONPATH": where},
    )  # fmt: skip


def test(
    stack: Stack, artifact: Artifact, tests: tuple[str, ...], resources: Resources, site: Site, runner: Runner,
    say: Say, *, runtime: str = "auto", suite_from_host: bool = False, parent: Path | None = None,
) -> tuple[Report, Path]:  # fmt: skip
    """The report of one run, and its folder. SlurmError if the step did not start on any node."""
    here = choose(site.runtime if runtime == "auto" else runtime, runner)[0].name == "local"
    run = prepare(stack, tests, resources, site, parent, here=here)
    suite = _host_suite(run) if suite_from_host else None
    line = step_plan(run, artifact, resources, site, runner, runtime=runtime, suite=suite)
    log = run.folder / "step.log"
    write_text(run.folder / "command.txt", line.shown() + "\n")
    say(f"{run.world} ranks on {run.nodes} node(s) by {line.runtime} ({line.reason})")
    began, started = time.monotonic(), datetime.now(timezone.utc).isoformat(timespec="seconds")
    done = runner.logged(list(line.argv), log, env=line.environment)
    rows, nodes, backend = collect(run.folder)
    if not rows:
        raise SlurmError(_nothing(done), f"the step's log is {log}; the line was: {run.folder / 'command.txt'}")
    node = site.node_type(resources.partition)
    report = Report(
        stack=artifact.stack, image=str(artifact.image), image_sha256=artifact.sha256,
        suite=f"{suite_version} (the host's)" if suite else artifact.suite,
        runtime=line.runtime, backend=backend, nodes=nodes, world_size=run.world, started=started,
        seconds=round(time.monotonic() - began, 1), stand_in=artifact.stand_in,
        virtual_nodes=bool(node and node.virtual and not here), step_status=done.status,
        outcomes=(*outcomes(run, rows, _tail(run.folder, done)), *step_outcome(done)),
    )  # fmt: skip
    write_text(run.folder / "report.json", report.model_dump_json(indent=1) + "\n")
    return report, run.folder


def _host_suite(run: Run) -> Path:
    from hpcstack import data

    write_tree(run.folder / "suite", data.smoke_files())
    return run.folder / "suite"


def _nothing(done: Completed) -> str:
    said = "\n".join(f"  < {line}" for line in done.tail)
    return f"the step left no result on any node (exit {done.status})\n{said}".rstrip()


def collect(folder: Path) -> tuple[list[dict[str, Any]], tuple[str, ...], str]:
    """All rows that nodes and ranks wrote, the nodes' names, and the backend of the ranks."""
    rows, hosts, backend = [], [], ""
    for path in sorted((*folder.glob("node-*.json"), *folder.glob("rank-*.json"))):
        document = json.loads(path.read_text())
        rows += document["rows"]
        hosts += [document["host"]] if "host" in document else []
        backend = document.get("backend", backend)
    return rows, tuple(sorted(hosts)), backend


def outcomes(run: Run, rows: list[dict[str, Any]], tail: str) -> list[Outcome]:
    """One Outcome a check that was asked for; a node or rank that left nothing is an ERROR of that check."""
    by_code: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_code[row["code"]].append(row)
    out = []
    for scope, expected in (("node", run.nodes), ("ranks", run.world)):
        for code in selected(run.tests, CODES[scope]):
            silent = expected - len(by_code[code])
            if silent > 0:
                what = f"{silent} of {expected} {scope.removesuffix('s')}(s) left no result"
                by_code[code].append(_silent(code, what, tail))
            out.append(worst(by_code[code]))
    return out


def step_outcome(done: Completed) -> list[Outcome]:
    """An ERROR where the step itself did not end with 0, whatever the checks wrote before."""
    if done.status == 0:
        return []
    said = (list(done.tail) or [""])[-1].strip()
    return [
        Outcome(code="run.step", status="ERROR", measured=f"the step ended with {done.status}", evidence=said[:400])
    ]


def _silent(code: str, what: str, tail: str) -> dict[str, Any]:
    return {"code": code, "where": "?", "status": "ERROR", "measured": what, "evidence": tail,
            "remedy": "read launcher-HOST.log in the run's folder"}  # fmt: skip


def _tail(folder: Path, done: Completed) -> str:
    """The line that tells most: the first error of a rank, else of its launcher, else the step's last line."""
    lines = [
        line for path in sorted(folder.glob("launcher-*.log")) for line in path.read_text(errors="replace").splitlines()
    ]
    for telling in (RANK_ERROR, re.compile("Error")):
        if found := next((line for line in lines if telling.search(line)), ""):
            return found.strip()[:400]
    return (list(done.tail) or [""])[-1].strip()[:400]
