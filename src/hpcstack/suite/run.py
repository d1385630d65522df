"""Test: the smoke suite in the image, as job steps over the nodes, and the report made of what they
left.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from hpcstack.core.dirs import state_folder
from hpcstack.core.errors import InputError, SlurmError, did_you_mean, format_count
from hpcstack.core.files import write_text, write_tree
from hpcstack.launch.plan import Plan, bring_libraries, plan_step
from hpcstack.launch.request import LaunchRequest
from hpcstack.launch.resources import Resources, Share, node_of, share_resources
from hpcstack.recipe.model import known_tests
from hpcstack.render.launchers import render_inner
from hpcstack.report import Outcome, Report
from hpcstack.runtimes import choose_runtime
from hpcstack.site.injection import HOST_PLACE
from hpcstack.slurm.query import find_allocation
from hpcstack.store.store import Store
from hpcstack.suite.mpi import mpi_step
from hpcstack.suite.outcomes import RunFiles, Size, find_telling_line, host_rows, make_outcomes
from hpcstack.suite.steps import Say, old_words, python_path, reads_requests, watch_steps
from hpcstack_smoke import __version__ as suite_version
from hpcstack_smoke.agent import start_s
from hpcstack_smoke.request import Request, write_request
from hpcstack_smoke.select import BURN, MINUTES, STALL_S, TIER_SECONDS, select_checks

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from hpcstack.core.process import Completed, Runner
    from hpcstack.recipe.model import Stack
    from hpcstack.site.load import Site
    from hpcstack.site.model import NodeType
    from hpcstack.store.artifact import Artifact

CPU_RANKS = 2
SERVERS_S = 1800.0  # tasks.LONG


@dataclass(frozen=True)
class Wanted:
    """What is asked of a run. `tests` and `skip`: codes, families, groups."""

    tests: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    tier: str = "quick"
    runtime: str = "auto"
    suite_from_host: bool = False
    parent: Path | None = None
    minutes: float = MINUTES


@dataclass(frozen=True)
class SuiteRun:
    """One run of the suite: where it writes, which checks it was asked for, on how many ranks."""

    folder: Path
    size: Size
    ranks_per_node: int
    share: Share
    here: bool = False
    minutes: float = MINUTES


def check_names(words: str) -> tuple[str, ...]:
    """The codes, families and groups in WORDS, by comma; InputError names the nearest right one."""
    found = tuple(filter(None, words.split(",")))
    for word in found:
        if word not in known_tests():
            near = did_you_mean(word, known_tests())
            raise InputError(
                f"no check or family {word!r}{near}", f"known: {', '.join(known_tests())}"
            )
    return found


def prepare_run(
    stack: Stack, wanted: Wanted, resources: Resources, site: Site, *, here: bool
) -> SuiteRun:
    """A new folder for a run.

    Nodes without real GPUs get two ranks: enough to talk within a node and between.
    """
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    parent = wanted.parent or state_folder() / "tests" / stack.full_name
    folder = parent / f"{stamp}-{uuid.uuid4().hex[:6]}"
    with Store(site.own_store).acting("no folder for the run"):
        folder.mkdir(parents=True)
    taken = share_resources(resources, site, find_allocation(os.environ), here=here)
    ranks = taken.ranks if taken.gpus else resources.nproc_per_node or CPU_RANKS
    tests, skip = ",".join(wanted.tests or stack.tests), ",".join(wanted.skip)
    return SuiteRun(
        folder,
        Size(resources.nodes, ranks * resources.nodes, tests, wanted.tier, skip),
        ranks,
        taken,
        here,
        wanted.minutes,
    )


def request_of(run: SuiteRun, artifact: Artifact, resources: Resources, site: Site) -> Request:
    """What the suite in the image reads: what was asked for, and what the site promises of its
    nodes.
    """
    size, node = (
        run.size,
        None if run.here else node_of(resources, site, find_allocation(os.environ)),
    )
    brought = () if run.here else bring_libraries(site, node, artifact, size.nodes)
    mapped = tuple(dict.fromkeys(name for one in brought for name in one.mapped))
    return Request(
        str(run.folder),
        size.tests,
        size.tier,
        size.skip,
        artifact.stack,
        run.share.gpus,
        run.ranks_per_node,
        size.nodes,
        STALL_S[size.tier],
        _deadline(run),
        minutes=run.minutes,
        injected=mapped,
        injected_at=HOST_PLACE if mapped else "",
        **list_promised(node, site),
    )


def _deadline(run: SuiteRun) -> float:
    """Seconds for all of a run: until all ranks have joined, twice what its tier takes, what a burn
    lasts, and what servers that were named may take to start.
    """
    start = start_s(run.size.nodes)
    servers = SERVERS_S if "serve" in run.size.tests else 0.0
    burn = 60.0 * run.minutes if run.size.tier == BURN else 0.0
    return start + 2.0 * TIER_SECONDS[run.size.tier] + burn + servers


def list_promised(node: NodeType | None, site: Site) -> dict[str, Any]:
    """What the site promises of NODE, as fields of a Request."""
    if node is None:
        return {"fabric": site.fabric.kind}
    gpus = node.gpus if node.real_gpus else None
    return {
        "fabric_rate": float(node.hca_rate),
        "fabric": site.fabric.kind,
        "hcas": node.hcas,
        "gpu": gpus.model if gpus else "",
        "node_gpus": node.real_gpus,
        "nvlink": bool(gpus and gpus.nvlink),
        "domain_nodes": gpus.domain_nodes if gpus else 0,
    }


def step_plan(
    run: SuiteRun,
    artifact: Artifact,
    resources: Resources,
    site: Site,
    runner: Runner,
    *,
    runtime: str,
    suite: Path | None,
) -> Plan:
    """The job step of one run: an agent a node, which starts the ranks there.

    SUITE is the caller's own, if given.
    """
    asked: tuple[str, ...] = ("--request", str(run.folder))
    if not suite and not reads_requests(artifact):
        asked = old_words(request_of(run, artifact, resources, site))
    command = (
        "python3",
        "-m",
        "hpcstack_smoke",
        *asked,
        "--",
        "/bin/sh",
        "-c",
        render_inner("torchrun"),
        "torchrun",
    )
    alone = replace(resources, nproc_per_node=0, ntasks_per_node=0)
    one_a_node = (
        replace(alone, ntasks_per_node=1, cpus_per_task=run.share.cpus) if not run.here else alone
    )
    request = LaunchRequest(
        command,
        one_a_node,
        mode="plain",
        runtime=runtime,
        workdir=run.folder,
        mounts=(f"{suite}:{suite}",) if suite else (),
        environment={"PYTHONPATH": python_path(artifact, suite)},
    )
    return plan_step(request, artifact, site, runner)


def run_suite(
    stack: Stack,
    artifact: Artifact,
    wanted: Wanted,
    resources: Resources,
    site: Site,
    runner: Runner,
    say: Say,
) -> tuple[Report, Path]:
    """The report of one run, and its folder. SlurmError if the step did not start on any node."""
    wanted_runtime = site.runtime if wanted.runtime == "auto" else wanted.runtime
    runtime, _ = choose_runtime(wanted_runtime, runner)
    here = not runtime.uses_slurm
    run = prepare_run(stack, wanted, resources, site, here=here)
    suite = _host_suite(run) if wanted.suite_from_host else None
    line = step_plan(run, artifact, resources, site, runner, runtime=wanted.runtime, suite=suite)
    write_text(run.folder / "command.txt", line.shown() + "\n")
    write_request(request_of(run, artifact, resources, site))
    say(
        f"{run.size.world} ranks on {format_count(run.size.nodes, 'node')} by {line.runtime} "
        f"({line.reason})"
    )
    began, started = time.monotonic(), datetime.now(timezone.utc).isoformat(timespec="seconds")
    steps = [
        runner.logged(
            list(line.argv), run.folder / "step.log", env=line.environment, on_line=watch_steps(say)
        )
    ]
    mpi = select_checks(run.size.tests, "mpi", run.size.tier, run.size.skip)
    if mpi and not here:
        steps.append(
            mpi_step(
                run.folder, run.size, artifact, resources, site, runner, wanted.runtime, suite, say
            )
        )
    found = collect_run(run.folder)
    found.add({"rows": host_rows(run.size, found.inventory)})
    if mpi and here:
        why = "without Slurm nothing starts MPI's ranks: hpcstack test -N 2 where there is Slurm"
        found.add(
            {
                "rows": [
                    {"code": one.code, "where": "here", "status": "SKIP", "evidence": why}
                    for one in mpi
                ]
            }
        )
    if not found.rows and not found.hosts:
        raise SlurmError(
            _nothing(steps[0]), f"see {run.folder / 'step.log'} and {run.folder / 'command.txt'}"
        )
    node = None if here else node_of(resources, site, find_allocation(os.environ))
    judged = make_outcomes(run.size, found, _tail(run.folder, steps[0]))
    report = Report(
        stack=artifact.stack,
        image=str(artifact.image),
        image_sha256=artifact.sha256,
        suite=suite_version if suite else artifact.suite,
        suite_from_host=bool(suite),
        tier=run.size.tier,
        runtime=line.runtime,
        backend=found.backend,
        nodes=tuple(sorted(found.hosts)),
        node_type=next((name for name, one in site.node_types.items() if one is node), ""),
        world_size=run.size.world,
        started=started,
        seconds=round(time.monotonic() - began, 1),
        stand_in=artifact.stand_in,
        adopted=artifact.adopted,
        virtual_nodes=bool(node and node.virtual),
        planted=found.planted,
        inventory=found.inventory,
        promised={name: value for name, value in list_promised(node, site).items() if value},
        step_status=next((step.status for step in steps if step.status), 0),
        outcomes=(*judged, *step_outcome(steps, judged)),
    )
    return report, run.folder


def _host_suite(run: SuiteRun) -> Path:
    from hpcstack.core import data

    write_tree(run.folder / "suite", data.smoke_files(), on_disk=False)
    return run.folder / "suite"


def _nothing(done: Completed) -> str:
    said = "\n".join(f"  < {line}" for line in done.tail)
    return f"the step left no result on any node (exit {done.status})\n{said}".rstrip()


def collect_run(folder: Path) -> RunFiles:
    """All that nodes and ranks wrote, nodes first, then the rounds of the ranks in their order."""
    found = RunFiles()
    for pattern in ("node-*.json", "task-*.json", "rank-*.json", "mpi-*.json"):
        for path in sorted(
            folder.glob(pattern), key=lambda path: (path.stem.split("-")[-1], path.name)
        ):
            try:
                document = json.loads(path.read_text(encoding="utf-8"))
            except (
                OSError,
                ValueError,
            ):  # torn, or replaced while it was read: who wrote it is named as missing
                continue
            if isinstance(document, dict):
                found.add(document)
    return found


def step_outcome(steps: list[Completed], judged: list[Outcome]) -> list[Outcome]:
    """An ERROR where a step did not end with 0 and no check says why; ranks that a broken check
    ended are no news.
    """
    if all(step.status == 0 for step in steps) or any(one.status == "ERROR" for one in judged):
        return []
    bad = next(step for step in steps if step.status)
    said = (list(bad.tail) or [""])[-1].strip()
    return [
        Outcome(
            code="run.step",
            status="ERROR",
            measured=f"the step ended with {bad.status}",
            evidence=said[:400],
        )
    ]


def _tail(folder: Path, done: Completed) -> str:
    lines = [
        line
        for path in sorted(folder.glob("launcher-*.log"))
        for line in path.read_text(errors="replace").splitlines()
    ]
    return find_telling_line(lines, (list(done.tail) or [""])[-1])
