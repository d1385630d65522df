"""Run the smoke suite in an image, as job steps over the nodes, and make its report.

Tested in tests/integration/test_smoke.py and tests/integration/test_chain.py.
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpcstack.core.clock import read_clock
from hpcstack.core.dirs import find_state_folder
from hpcstack.core.errors import InputError, SlurmError, did_you_mean, format_count
from hpcstack.core.files import write_text, write_tree
from hpcstack.launch.node_types import list_node_types
from hpcstack.launch.plan import Plan, bring_libraries, plan_step
from hpcstack.launch.request import LaunchRequest
from hpcstack.recipe.model import list_test_names
from hpcstack.render.launchers import render_inner
from hpcstack.report import Outcome, Report
from hpcstack.site.injection import HOST_PLACE
from hpcstack.site.own_checks import list_own_checks, list_own_names
from hpcstack.store.store import Store
from hpcstack.suite.mpi import NO_SLURM, MpiSteps
from hpcstack.suite.outcomes import (
    RunFiles,
    SuiteRun,
    find_telling_line,
    make_host_rows,
    make_outcomes,
)
from hpcstack.suite.own_checks import select_own_checks, write_own_runs
from hpcstack.suite.steps import python_path, watch_steps
from hpcstack_smoke import __version__ as suite_version
from hpcstack_smoke.agent import start_s
from hpcstack_smoke.request import Request, write_request
from hpcstack_smoke.select import BURN, MINUTES, STALL_S, TIER_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path
    from typing import Any

    from hpcstack.core.process import Completed
    from hpcstack.core.progress import Say
    from hpcstack.launch.resources import Resources
    from hpcstack.launch.surroundings import Surroundings
    from hpcstack.recipe.model import Stack
    from hpcstack.recipe.own_checks import OwnCheck
    from hpcstack.site.load import Site
    from hpcstack.site.model import NodeType
    from hpcstack.store.artifact import Artifact
    from hpcstack_smoke.select import Check

CPU_RANKS = 2  # on nodes without GPUs: enough to communicate within a node, and between nodes
SERVERS_S = 1800.0  # that servers may take to start, as `tasks.LONG` of the suite says


@dataclass(frozen=True)
class SuiteRequest:
    """What a run is asked to do."""

    tests: tuple[str, ...] = ()  # codes, families or groups; empty: those of the recipe
    skip: tuple[str, ...] = ()  # likewise, what to leave out
    tier: str = "quick"
    suite_from_host: bool = False  # run this hpcstack's suite, not the one in the image
    parent: Path | None = None  # of the run's folder; None: in the user's state folder
    minutes: float = MINUTES  # of a burn


def check_names(words: str, own: Mapping[str, OwnCheck]) -> tuple[str, ...]:
    """Return the codes, families and groups in WORDS, which are separated by commas.

    OWN are own checks by their codes. InputError where one is not known; it names the nearest one that
    is.
    """
    found = tuple(filter(None, words.split(",")))
    known = [*list_own_names(own), *list_test_names()]
    for word in found:
        if word not in known:
            near = did_you_mean(word, known)
            raise InputError(
                f"no check or family {word!r}{near}",
                f"known: {', '.join(known)}",
                page="test-a-stack",
            )
    return found


def prepare_run(
    stack: Stack,
    artifact: Artifact,
    request: SuiteRequest,
    resources: Resources,
    around: Surroundings,
) -> SuiteRun:
    """Make a new folder for a run in ARTIFACT, and settle all that it is asked to do.

    That is its checks, how many ranks each node has, and what the site promises of its nodes. On
    nodes without real GPUs the ranks are what RESOURCES say, or CPU_RANKS. Raise InputError where
    nobody knows how many GPUs a node has.
    """
    site, here = around.site, around.here
    nodes = around.find_nodes(resources)
    taken = nodes.share
    kinds, node = ((), None) if here else (nodes.kinds, nodes.node)
    if taken.doubt:
        raise InputError(
            f"{taken.doubt}, and a run must know how many to prove",
            "--gpus-per-node N",
            page="test-a-stack",
        )
    if resources.most_nodes:
        raise InputError(
            f"-N {resources.span}: a run must know how many nodes to prove",
            f"-N {resources.nodes}",
            page="test-a-stack",
        )
    stamp = read_clock().strftime("%Y%m%dT%H%M%SZ")
    parent = request.parent or find_state_folder() / "tests" / stack.full_name
    folder = parent / f"{stamp}-{uuid.uuid4().hex[:6]}"
    with Store(site.own_store, sharing=site.sharing).acting("no folder for the run"):
        folder.mkdir(parents=True)

    ranks = taken.ranks if taken.gpus else resources.nproc_per_node or CPU_RANKS
    own = select_own_checks(list_own_checks(stack, site), request.tests, request.tier, request.skip)
    tests = request.tests or stack.tests
    brought = () if here else bring_libraries(site, kinds, artifact, resources.nodes)
    mapped = tuple(dict.fromkeys(name for one in brought for name in one.mapped))
    settled = Request(
        output=str(folder),
        tests=",".join(tests),
        tier=request.tier,
        skip=",".join(request.skip),
        stack=artifact.stack,
        gpus=taken.gpus,
        ranks=ranks,
        nodes=resources.nodes,
        stall_s=STALL_S[request.tier],
        deadline_s=_find_deadline(request, tests, own, resources.nodes),
        minutes=request.minutes,
        injected=mapped,
        injected_at=HOST_PLACE if mapped else "",
        own=write_own_runs(own),
        **list_promised(node, site),
    )
    return SuiteRun(settled, taken, here, own, kinds, node)


def _find_deadline(
    request: SuiteRequest, tests: tuple[str, ...], own: Mapping[str, OwnCheck], nodes: int
) -> float:
    """Return how many seconds all of a run of TESTS and the OWN checks on NODES may take.

    That is the time for all ranks to join, twice what its tier takes, the minutes of a burn, what
    servers may take to start if their checks were named, and the time limits of own checks.
    """
    deadline = start_s(nodes) + 2.0 * TIER_SECONDS[request.tier]
    if request.tier == BURN:
        deadline += 60.0 * request.minutes
    if any(word.partition(".")[0] == "serve" for word in tests):
        deadline += SERVERS_S
    return deadline + sum(check.time_limit for check in own.values())


def list_promised(node: NodeType | None, site: Site) -> dict[str, Any]:
    """Return what the site promises of NODE, as fields of a Request."""
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


def make_step_plan(
    run: SuiteRun,
    artifact: Artifact,
    resources: Resources,
    around: Surroundings,
    *,
    suite: Path | None,
) -> Plan:
    """Plan the job step of a run: an agent on each node, which starts the ranks there.

    SUITE is the folder of a suite to run in place of the image's.
    """
    launcher = ("/bin/sh", "-c", render_inner("torchrun"), "torchrun")
    command = ("python3", "-m", "hpcstack_smoke", "--request", str(run.folder), "--", *launcher)

    # one task a node, with all that the run has there: its ranks share that
    one_a_node = replace(resources, nproc_per_node=0, ntasks_per_node=0)
    if not run.here:
        one_a_node = replace(one_a_node, ntasks_per_node=1, cpus_per_task=run.share.cpus)
    request = LaunchRequest(
        command,
        one_a_node,
        mode="plain",
        all_gpus=True,
        workdir=run.folder,
        mounts=(f"{suite}:{suite}",) if suite else (),
        environment={"PYTHONPATH": python_path(artifact, suite)},
    )
    return plan_step(request, artifact, around)


def run_suite(
    stack: Stack,
    artifact: Artifact,
    request: SuiteRequest,
    resources: Resources,
    around: Surroundings,
    say: Say,
) -> tuple[Report, Path]:
    """Run the suite in ARTIFACT. Return its report, not yet judged by gates, and its folder.

    SlurmError if the step left nothing on any node.
    """
    here = around.here
    run = prepare_run(stack, artifact, request, resources, around)
    folder = run.folder
    suite = _write_host_suite(run) if request.suite_from_host else None

    plan = make_step_plan(run, artifact, resources, around, suite=suite)
    write_text(folder / "command.txt", plan.shown() + "\n")
    write_request(run.request)
    nodes = format_count(run.nodes, "node")
    say(f"{run.world} ranks on {nodes} by {plan.runtime} ({plan.reason})")

    began = time.monotonic()
    started = read_clock().isoformat(timespec="seconds")
    step = around.runner.logged(
        list(plan.argv), folder / "step.log", env=plan.environment, on_line=watch_steps(say)
    )
    steps = [step]
    mpi = MpiSteps(run, artifact, resources, around, suite)
    mpi_checks = run.select("mpi")
    if mpi_checks and not here:
        steps.append(mpi.run_suite_checks(say))
    lost = mpi.run_own_checks(collect_run(folder), say)

    found = collect_run(folder)
    found.lost |= lost
    found.add({"rows": make_host_rows(run, found.inventory)})
    if mpi_checks and here:
        found.add({"rows": _skip_mpi(mpi_checks)})
    if not found.rows and not found.hosts:
        look = f"see {folder / 'step.log'} and {folder / 'command.txt'}"
        raise SlurmError(_explain_nothing(step), look, page="test-a-stack")

    judged = make_outcomes(run, found, _find_telling_line(folder, step))
    report = Report(
        stack=artifact.stack,
        image=str(artifact.image),
        image_sha256=artifact.sha256,
        suite=suite_version if suite else artifact.suite,
        suite_from_host=bool(suite),
        tier=request.tier,
        runtime=plan.runtime,
        backend=found.backend,
        nodes=tuple(sorted(found.hosts)),
        node_type=_find_kind(run, found.hosts, resources, around),
        world_size=run.world,
        started=started,
        seconds=round(time.monotonic() - began, 1),
        stand_in=artifact.stand_in,
        adopted=artifact.adopted,
        virtual_nodes=bool(run.node and run.node.virtual),
        planted=found.planted,
        inventory=found.inventory,
        promised={
            name: value for name, value in list_promised(run.node, around.site).items() if value
        },
        step_status=next((step.status for step in steps if step.status), 0),
        outcomes=(*judged, *judge_step(steps, judged)),
    )
    return report, folder


def _find_kind(
    run: SuiteRun, hosts: Iterable[str], resources: Resources, around: Surroundings
) -> str:
    """Return the site's name for the nodes of a RUN that has ended on HOSTS; empty where it is open.

    Before, it may have been open which nodes of a mixed partition Slurm would choose.
    """
    if len(run.node_types) < 2:
        return run.node_type
    there = replace(resources, nodelist=",".join(sorted(hosts)))
    kinds = list_node_types(there, around.site, {}, around.client)
    return kinds[0] if len(kinds) == 1 else ""


def _write_host_suite(run: SuiteRun) -> Path:
    """Write this hpcstack's suite into the run's folder. Return where it is."""
    from hpcstack.core import data

    write_tree(run.folder / "suite", data.read_smoke_files(), on_disk=False)
    return run.folder / "suite"


def _skip_mpi(checks: list[Check]) -> list[dict[str, str]]:
    """Return a SKIP row for each of the MPI's CHECKS."""
    return [
        {"code": one.code, "where": "here", "status": "SKIP", "evidence": NO_SLURM}
        for one in checks
    ]


def _explain_nothing(step: Completed) -> str:
    """Return the message of a STEP that left no result: its status, and what it said last."""
    said = "\n".join(f"  < {line}" for line in step.tail)
    return f"the step left no result on any node (exit {step.status})\n{said}".rstrip()


def collect_run(folder: Path) -> RunFiles:
    """Read all that nodes, tasks and ranks wrote: nodes first, ranks in the order of their rounds.

    A file that cannot be read, as it is torn or was being replaced, is left out: `make_outcomes`
    then names whoever wrote it as missing.
    """
    found = RunFiles()
    for pattern in ("node-*.json", "task-*.json", "rank-*.json", "mpi-*.json", "own-*.json"):
        # a rank's file name ends in its round
        paths = sorted(folder.glob(pattern), key=lambda path: (path.stem.split("-")[-1], path.name))
        for path in paths:
            try:
                document = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue
            if isinstance(document, dict):
                found.add(document)
    return found


def judge_step(steps: list[Completed], judged: list[Outcome]) -> list[Outcome]:
    """Return an ERROR if one of STEPS did not end with 0 and no check says why; else nothing.

    Where a check is an ERROR, it broke the ranks, and the status is no news.
    """
    if all(step.status == 0 for step in steps) or any(one.status == "ERROR" for one in judged):
        return []
    bad = next(step for step in steps if step.status)
    said = (list(bad.tail) or [""])[-1].strip()
    outcome = Outcome(
        code="run.step",
        status="ERROR",
        measured=f"the step ended with {bad.status}",
        evidence=said[:400],
    )
    return [outcome]


def _find_telling_line(folder: Path, step: Completed) -> str:
    """Return the line of the launchers' logs, or of STEP, that tells most of what went wrong."""
    lines: list[str] = []
    for path in sorted(folder.glob("launcher-*.log")):
        lines += path.read_text(errors="replace").splitlines()
    return find_telling_line(lines, (list(step.tail) or [""])[-1])
