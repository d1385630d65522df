"""The MPI part of a test run: a job step of its own, whose ranks Slurm's PMI starts.

Tested in tests/integration/test_smoke.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hpcstack.launch.plan import plan_step
from hpcstack.launch.request import LaunchRequest
from hpcstack.suite.steps import python_path, watch_steps

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.core.process import Completed, Runner
    from hpcstack.core.progress import Say
    from hpcstack.launch.resources import Resources
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact
    from hpcstack.suite.outcomes import SuiteRun


def run_mpi_step(
    run: SuiteRun,
    artifact: Artifact,
    resources: Resources,
    site: Site,
    runner: Runner,
    runtime: str,
    suite: Path | None,
    say: Say,
) -> Completed:
    """Run the MPI step; its first rank leaves the results as mpi-0.json in its folder.

    SUITE is the folder of a suite to run in place of the image's.
    """
    command = ("python3", "-m", "hpcstack_smoke.apps.mpi", str(run.folder))
    ranks = replace(
        resources, nproc_per_node=0, ntasks_per_node=run.ranks_per_node, cpus_per_task=0
    )
    request = LaunchRequest(
        command,
        ranks,
        mode="mpi",
        runtime=runtime,
        workdir=run.folder,
        mounts=(f"{suite}:{suite}",) if suite else (),
        environment={"PYTHONPATH": python_path(artifact, suite)},
    )
    plan = plan_step(request, artifact, site, runner)
    say(f"{run.world} MPI ranks")
    return runner.logged(
        list(plan.argv), run.folder / "mpi.log", env=plan.environment, on_line=watch_steps(say)
    )
