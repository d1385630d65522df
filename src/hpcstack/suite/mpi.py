"""The MPI part of a test run: job steps of their own, whose ranks Slurm's PMI starts.

Tested in tests/integration/test_smoke.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpcstack.core.errors import HpcstackError
from hpcstack.launch.plan import plan_step
from hpcstack.launch.request import LaunchRequest
from hpcstack.suite.steps import python_path, watch_steps
from hpcstack_smoke.own import find_missing, make_skip, name_file, parse_own_run
from hpcstack_smoke.result import write_document

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.core.process import Completed
    from hpcstack.core.progress import Say
    from hpcstack.launch.resources import Resources
    from hpcstack.launch.surroundings import Surroundings
    from hpcstack.store.artifact import Artifact
    from hpcstack.suite.outcomes import RunFiles, SuiteRun
    from hpcstack_smoke.own import OwnRun

NO_SLURM = "without Slurm nothing starts MPI's ranks: hpcstack test -N 2 where there is Slurm"


@dataclass(frozen=True)
class MpiSteps:
    """The MPI part of one run: what its steps share.

    SUITE is the folder of a suite to run in place of the image's.
    """

    run: SuiteRun
    artifact: Artifact
    resources: Resources
    around: Surroundings
    suite: Path | None

    def run_suite_checks(self, say: Say) -> Completed:
        """Run the suite's MPI checks; their first rank leaves mpi-0.json in the run's folder."""
        say(f"{self.run.world} MPI ranks")
        command = ("python3", "-m", "hpcstack_smoke.apps.mpi", str(self.run.folder))
        return self._run_step(command, "mpi.log", say)

    def run_own_checks(self, found: RunFiles, say: Say) -> dict[str, str]:
        """Run the own checks that are MPI programs, each as a step of its own.

        FOUND is what the nodes left. Return {code: why} of those whose step could not be started
        or failed; each rank leaves a document of its own.
        """
        lost = {}
        for document in self.run.request.own:
            run = parse_own_run(document)
            if run.on != "mpi":
                continue
            if not self.run.here and not found.runs_own_checks:
                continue  # an older suite, which has no such module: `make_own_rows` says so
            missing = self._find_missing(run, found)
            if missing:
                name = name_file(run.code, 0, "json")
                skip = make_skip(run, "all ranks", 0, missing)
                write_document(str(self.run.folder), name, skip)
                continue
            say(f"{run.code}: {self.run.world} MPI ranks")
            command = ("python3", "-m", "hpcstack_smoke.own", str(self.run.folder), run.code)
            try:
                step = self._run_step(command, f"own-{run.code}-step.log", say)
            except HpcstackError as error:  # it must not cost the run its other results
                lost[run.code] = str(error)
                continue
            if step.status:
                lost[run.code] = (list(step.tail) or [f"exit status {step.status}"])[-1].strip()
        return lost

    def _find_missing(self, run: OwnRun, found: RunFiles) -> str:
        """Return what RUN needs and the nodes that FOUND is of do not have; empty if nothing."""
        if self.run.here:
            return NO_SLURM
        for inventory in found.inventory.values():
            missing = find_missing(run, self.run.nodes, inventory)
            if missing:
                return missing
        return ""

    def _run_step(self, command: tuple[str, ...], log: str, say: Say) -> Completed:
        """Run COMMAND as every MPI rank of the run, with its output in LOG."""
        ranks = replace(
            self.resources,
            nproc_per_node=0,
            ntasks_per_node=self.run.request.ranks,
            cpus_per_task=0,
        )
        request = LaunchRequest(
            command,
            ranks,
            mode="mpi",
            workdir=self.run.folder,
            mounts=(f"{self.suite}:{self.suite}",) if self.suite else (),
            environment={"PYTHONPATH": python_path(self.artifact, self.suite)},
        )
        plan = plan_step(request, self.artifact, self.around)
        return self.around.runner.logged(
            list(plan.argv),
            self.run.folder / log,
            env=plan.environment,
            on_line=watch_steps(say),
        )
