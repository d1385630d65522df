"""Carry out a planned launch: run it here, submit it as a job, or only judge it; and record it.

Tested in tests/unit/launch/test_record.py and tests/integration/test_statuses.py.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcstack.core.dirs import find_state_folder
from hpcstack.core.errors import InputError, SlurmError, StoreError, format_count
from hpcstack.core.process import write_stderr
from hpcstack.launch import record
from hpcstack.launch.failure import Failure, last_line
from hpcstack.launch.folders import own_folder
from hpcstack.launch.foreign_python import describe_foreign_packages
from hpcstack.launch.host_libraries import describe_not_here, find_misfit, find_nccl
from hpcstack.launch.interrupt import Interruption
from hpcstack.launch.plan import OWN_FAILURE, Plan, find_home_to_mount
from hpcstack.launch.preflight import explain_missing_command, note_own_torch
from hpcstack.launch.reach_slurm import runs_slurm_command
from hpcstack.launch.script import (
    list_directives,
    make_salloc_line,
    on_terminal,
    render_outline,
    render_script,
)
from hpcstack.launch.stderr import Screen, Stderr
from hpcstack.launch.usage_log import log_launch
from hpcstack.launch.variables import list_final_variables
from hpcstack.project.added import Added, make_added
from hpcstack.runtimes import RUNTIMES
from hpcstack.slurm.client import Client
from hpcstack.slurm.query import find_allocation as allocation_of
from hpcstack.slurm.state import JobState

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcstack.core.process import Runner
    from hpcstack.core.progress import Progress
    from hpcstack.launch.request import LaunchRequest
    from hpcstack.runtimes import Part, Runtime
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact


@dataclass(frozen=True)
class Submitted:
    """A launch in the queue: its job, the folder with its script, and where it writes."""

    job: str
    folder: Path
    script: Path
    output: Path


TERMINAL_PROGRAMS = ("pdb", "ipdb", "pudb", "ipython", "bash", "sh", "zsh", "python", "python3")


def asks_for_a_terminal(command: tuple[str, ...]) -> bool:
    """Whether COMMAND would wait for input.

    That is a debugger, or a shell or an interpreter without a program.
    """
    program = command[0]
    is_a_module = program == "-m" or (program in ("python", "python3") and command[1:2] == ("-m",))
    if is_a_module:
        module = command[command.index("-m") + 1 :][:1]
        return module in (("pdb",), ("ipdb",), ("pudb",), ("IPython",))
    if program not in TERMINAL_PROGRAMS:
        return False
    return len(command) == 1 or program.endswith(("pdb", "pudb"))


@dataclass(frozen=True)
class PlannedLaunch:
    """One launch: its plan, the image and why that image was chosen.

    `doubt` says in what the image may differ from what its user expects; it is often empty.
    """

    plan: Plan
    artifact: Artifact
    why: str
    site: Site
    runner: Runner
    added: Added | None = None
    doubt: str = ""
    release: str = ""  # that the image is; empty where it is none

    @property
    def request(self) -> LaunchRequest:
        return self.plan.request

    @property
    def command(self) -> tuple[str, ...]:
        """The words that the user typed after the `--`."""
        return self.request.command

    @property
    def runtime(self) -> Runtime:
        """The runtime that starts the step."""
        return RUNTIMES[self.plan.runtime]

    def notes(self) -> list[str]:
        """Return what is printed before the step starts: which image, and by which runtime."""
        out = [f"{self.artifact.stack} ({self.why}) by {self.plan.runtime} ({self.plan.reason})"]
        if self.runtime.uses_slurm and self._is_without_home():
            out.append(
                "the container has this folder and the mounts, but not your home directory: "
                "--home adds it"
            )
        return out

    def warnings(self) -> list[str]:
        """Return what may differ from what the user expects, one sentence each."""
        plan = self.plan
        cwd = Path.cwd()
        out = []
        if self.doubt:
            out.append(self.doubt)
        out += plan.warnings
        out += describe_foreign_packages(os.environ)
        if not self.runtime.uses_slurm:
            return out

        if self.request.home and not find_home_to_mount() and "home" not in self.runtime.brings:
            out.append(
                f"{Path.home()} cannot be mounted; libraries that keep a cache there need another "
                "place: HF_HOME, ..."
            )
        if str(cwd) == "/":
            out.append(
                "/ is not mounted, so the command starts in the image's own folder; cd to the "
                "folder of your program first"
            )
        if asks_for_a_terminal(self.command) and not on_terminal(plan.parts):
            out.append(
                f"{self.command[0]} waits for somebody to type: --pty before the `--` gives it "
                "this terminal"
            )
        out += self._warn_of_folders(cwd)

        own_torch = note_own_torch(self.artifact, self.command, cwd)
        if own_torch:
            out.append(own_torch)
        unseen = describe_not_here(plan.brought)
        if unseen:
            out.append(
                f"not checked, because this machine does not have them: {', '.join(unseen)}; "
                "nodes must have them"
            )
        if plan.ranks == 1 < plan.virtual_gpus:
            out.append(
                f"the {plan.virtual_gpus} GPUs of each node here have no device behind them: "
                "one rank per node; --nproc-per-node N starts more"
            )
        return out

    def _warn_of_folders(self, cwd: Path) -> list[str]:
        """Return what nodes may lack: CWD, and what --mount names."""
        out = []
        # A shell in a step is on a node already, and sees the folder there.
        if not os.environ.get("SLURM_STEP_ID"):
            with contextlib.suppress(OSError):
                mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
                why = own_folder(cwd, self.site.store, mounts)
                if why:
                    out.append(f"{why}; nodes that lack it cannot start the step")
        for mount in self.request.mounts:
            source = mount.partition(":")[0]
            if not Path(source).exists():
                out.append(f"{source} does not exist on this machine; nodes must have it")
        return out

    def _is_without_home(self) -> bool:
        """Whether to say that the home directory is missing in the container.

        That is so where the site leaves it out by default, the request did too, and no mount brings
        it. Whoever chose --no-home against the site's default knows.
        """
        targets = {
            mount.partition(":")[2].rstrip("/")
            for mount in (*self.request.mounts, *self.site.mounts)
        }
        return (
            not self.request.home
            and str(Path.home()) not in targets
            and self.site.mount_home is False
        )

    def prepare(self, progress: Progress) -> None:
        """Make what must exist before nodes are asked for: the added packages."""
        if self.added:
            make_added(self.added, self.artifact, self.site, self.runner, progress, os.environ)

    def script(self, *, batch: bool) -> str:
        """Return what would be run as a script, with the reason for each line.

        With BATCH it is the script of a job of its own.
        """
        directives: tuple[Part, ...] = ()
        if batch:
            directives = list_directives(self.plan)
        return render_script(self.plan, self.artifact, self.why, directives)

    def outline(self, *, batch: bool) -> str:
        """Return what would be run in a few lines: Slurm's program, its options, the command."""
        return render_outline(self.plan, self.command, batch=batch)

    def document(self) -> dict[str, Any]:
        """Return the plan as `launch --dry-run --json` prints it."""
        plan = self.plan
        return {
            "runtime": plan.runtime,
            "reason": plan.reason,
            "mode": plan.mode,
            "argv": list(plan.argv),
            "environment": [asdict(one) for one in plan.settings],
            "image": str(self.artifact.image),
            "staged": plan.staged.how if plan.staged else "none",
            "slurm_refuses": plan.slurm_refuses,
            "notes": list(plan.warnings),
        }

    def run(
        self, on_begin: Callable[[Path], None] | None = None, *, apart: bool = False
    ) -> tuple[int, str]:
        """Run the step on this terminal. Return its exit status and the last line to print.

        ON_BEGIN is called with the folder of the launch's record, before anything starts. APART is
        that of `Runner.attached`.

        The status is that of the rank that failed first, or 0. The line says what happened; it is
        empty where nothing is left to say.

        A step that needs more than srun (Plan.needs_script) is run as its script, in the allocation
        of this shell or in one of salloc's. The script itself then says what happened.
        """
        plan = self.plan
        folder = self._record(allocation=allocation_of(os.environ).get("SLURM_JOB_ID", ""))
        if on_begin:
            on_begin(folder)
        failure = Failure()
        screen = None
        if self._is_screened():
            screen = Screen(failure)
        errors = Stderr(folder, failure.feed, screen)
        scripted = plan.needs_script
        # Nothing may come between a step and a terminal of its own.
        heard = self.runtime.uses_slurm and not on_terminal(plan.parts)
        interruption = None
        if heard:
            interruption = Interruption(folder, self.runner, errors, screen)

        argv = plan.argv
        own = {"HPCSTACK_RUN": str(folder), **self._variables_for_gc()}
        if scripted:
            self._write_script(folder)
            argv = ("bash", str(folder / record.SCRIPT))
            if not allocation_of(os.environ):
                argv = (*make_salloc_line(plan), *argv)
                own["HPCSTACK_LAUNCHER"] = str(os.getpid())

        # A script that is only kept is written while srun starts, which is not delayed by it.
        keep_script = functools.partial(self._write_script, folder)
        status = self.runner.attached(
            argv,
            env={**plan.environment, **own},
            meanwhile=None if scripted else keep_script,
            errors=errors if heard else None,
            ending=interruption,
            is_script=scripted,
            apart=apart,
        )
        if heard:
            write_stderr(errors.end())

        last = ""
        state = failure.read_state(status)
        ended_by_user = interruption is not None and interruption.has_come
        if heard and not scripted and not ended_by_user:
            status, said = failure.end(status)
            if status:
                last = last_line(said, status, str(errors.path))
                errors.add(last)
        if interruption and ended_by_user:
            state, last = interruption.end(failure)
            status = state.exit
            errors.add(last)
        elif screen and screen.left_out:
            lines = format_count(screen.left_out, "more line")
            more = f"hpcstack: {lines} not shown: hpcstack logs, or launch --all"
            last = "\n".join(filter(None, (more, last)))

        record.write_end(folder, replace(state, exit=status))
        return status, last

    def _is_screened(self) -> bool:
        """Whether the lines that follow a rank's failure may be left out of what is shown.

        They may where the failure ends the step and somebody watches. A job's log is read later and
        searched, so it gets every line.
        """
        goes_on = self.request.goes_on or "--kill-on-bad-exit=0" in self.plan.argv
        into_a_jobs_log = bool(allocation_of(os.environ)) and not os.isatty(2)
        return not (self.request.all_stderr or goes_on or into_a_jobs_log)

    def _variables_for_gc(self) -> dict[str, str]:
        """Return the image's key for launchers/on-node/began.sh, inside an allocation.

        The job was not submitted by this launch and does not name the image yet; began.sh writes
        the key into it, so that `hpcstack gc` sees which image is in use.
        """
        if not allocation_of(os.environ):
            return {}
        return {"HPCSTACK_KEY": self.artifact.key}

    def _write_script(self, folder: Path, job: tuple[Part, ...] = ()) -> None:
        """Write the script of the launch into FOLDER; StoreError where it cannot be written."""
        try:
            record.write_script(folder, render_script(self.plan, self.artifact, self.why, job))
        except OSError as error:
            what = f"the launch was not recorded: {error.strerror} ({error.filename or folder})"
            hint = f"make room in {folder.parent}: look at your quota and at df"
            raise StoreError(what, hint, page="where-caches-go") from None

    def _record(self, *, allocation: str) -> Path:
        """Begin the record of the launch and return its folder. Tell syslog, where the site wants it.

        ALLOCATION is the job that it becomes a step of; empty where it is a job of its own.

        Where the home directory is full, the launch runs all the same and its record goes to /tmp.
        """
        if self.site.usage.log:
            log_launch(self.release or self.artifact.stack, os.environ)
        settings = list_final_variables(
            list(self.plan.settings), self.artifact.environment, os.environ
        )
        wanted = self.added.wanted if self.added else ()
        facts = (self.plan, self.artifact, self.why, settings, os.environ, wanted)
        try:
            return record.begin_record(*facts, allocation=allocation)
        except OSError as error:
            why = f"{find_state_folder()} cannot be written: {error.strerror or error}"

        try:
            top = Path(tempfile.mkdtemp(prefix="hpcstack-launches-"))
            kept = (
                f"this launch is kept in {top} alone, where `hpcstack logs` and `explain` do not "
                "look"
            )
            write_stderr(f"* NOTE: {why}; {kept}\n".encode(errors="replace"))
            return record.begin_record(*facts, top=top, allocation=allocation)
        except OSError as error:
            raise StoreError(
                f"{why}, and {tempfile.gettempdir()} cannot be written either: {error.strerror}",
                "make room in one of them",
                page="where-caches-go",
            ) from None

    def submit(self) -> Submitted:
        """Submit the launch as a batch job.

        Raise SlurmError where Slurm refuses it, InputError where the job could not write its
        output.
        """
        where = Path(self._find_output("0")).parent
        if where.is_dir() and not os.access(where, os.W_OK):
            raise InputError(
                f"{where} cannot be written, and the job's output would go there",
                "cd to a folder of yours, or --output=/scratch/%x-%j.out",
            )
        folder = self._record(allocation="")
        self._write_script(folder, list_directives(self.plan))
        script = folder / record.SCRIPT
        try:
            job = Client(self.runner).submit_job(script, env={"HPCSTACK_RUN": str(folder)})
        except SlurmError:
            record.write_end(folder, JobState("FAILED", OWN_FAILURE))
            raise
        record.write_submitted(folder, job)
        output = self._find_output(job)
        record.write_output_path(folder, output)
        return Submitted(job, folder, script, Path(output))

    def _find_output(self, job: str) -> str:
        """Return the file that JOB writes to, by its --output."""
        outputs = [part.value for part in list_directives(self.plan) if part.option == "--output"]
        names = [part.value for part in self.plan.parts if part.option == "--job-name"]
        output = record.name_output(
            outputs[-1],
            names[-1] if names else self.artifact.stack,
            job,
            is_array=any(part.option == "--array" for part in self.plan.parts),
        )
        return str(Path.cwd() / output)

    def refusal(self) -> str:
        """Return why the launch could not start; empty where it could.

        The image is looked at first, then the command in it, and last sbatch is asked.
        """
        return self.missing() or self._ask_sbatch()

    def missing(self) -> str:
        """Return what is not there: the image, or the command in it; empty where both are.

        A library of the nodes that the image cannot load counts as missing, too.
        """
        artifact = self.artifact
        plan = self.plan
        if not artifact.image.is_file():
            return f"{artifact.image} is gone: hpcstack build {artifact.stack}"
        # The command may come from added packages, which are not installed yet.
        if self.added or runs_slurm_command(self.request):
            return ""

        if plan.brought:
            nccl = find_nccl(artifact)
            misfit = find_misfit(plan.brought, artifact.image, artifact.platform, nccl)
            if misfit:
                return misfit

        staged = plan.staged.sources if plan.staged else ()
        home = (f"{Path.home()}:{Path.home()}",) if self.request.home else ()
        tmp = ("/tmp:/tmp",) if "tmp" in self.runtime.brings else ()
        mounts = (*home, *tmp, *self.site.mounts, *artifact.mounts, *self.request.mounts, *staged)
        # An image that is staged, to spare the shared filesystem, is not read here once more.
        look = not (plan.staged and plan.staged.image)
        return explain_missing_command(artifact, self.command, Path.cwd(), mounts, look=look)

    def _ask_sbatch(self) -> str:
        """Return why sbatch would refuse the launch, without submitting it.

        Empty where it would accept it. sbatch is not asked inside an allocation, nor where srun
        does not start the step.
        """
        if not self.runner.has("sbatch") or allocation_of(os.environ):
            return ""
        if self.plan.argv[0] != "srun":
            return ""
        with record.write_scratch_script(self.script(batch=True)) as path:
            return Client(self.runner).find_refusal(path)
