"""What is done with a plan: it is run here, submitted as a job, or only judged; and what is written
down of it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcstack.core.dirs import state_folder
from hpcstack.core.errors import InputError, SlurmError, StoreError, format_count
from hpcstack.core.process import write_stderr
from hpcstack.launch import record
from hpcstack.launch.failure import Failure, last_line
from hpcstack.launch.folders import own_folder
from hpcstack.launch.host_libraries import find_misfit, nccl_of, not_here
from hpcstack.launch.interrupt import Interruption
from hpcstack.launch.packages import Added, make_added
from hpcstack.launch.plan import OWN_FAILURE, Plan, home_to_mount
from hpcstack.launch.preflight import explain_missing_command, note_own_torch
from hpcstack.launch.script import (
    list_directives,
    make_salloc_line,
    on_terminal,
    render_outline,
    render_script,
)
from hpcstack.launch.stderr import Screen, Stderr
from hpcstack.launch.variables import all_of
from hpcstack.runtimes import RUNTIMES
from hpcstack.slurm.jobs import find_refusal, submit_job
from hpcstack.slurm.query import find_allocation as allocation_of

if TYPE_CHECKING:
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
    """Whether COMMAND is a debugger, or a shell or an interpreter without a program: it would wait
    for input.
    """
    if command[0] == "-m" or (command[0] in ("python", "python3") and command[1:2] == ("-m",)):
        module = command[command.index("-m") + 1 :][:1]
        return module in (("pdb",), ("ipdb",), ("pudb",), ("IPython",))
    return command[0] in TERMINAL_PROGRAMS and (
        len(command) == 1 or command[0].endswith(("pdb", "pudb"))
    )


@dataclass(frozen=True)
class PlannedLaunch:
    """One launch: what was asked for, its plan, the image and why that one.

    `doubt` says what of the image may not be as its user expects.
    """

    request: LaunchRequest
    plan: Plan
    artifact: Artifact
    why: str
    site: Site
    runner: Runner
    added: Added | None = None
    doubt: str = ""

    @property
    def command(self) -> tuple[str, ...]:
        """What its user has typed after the `--`."""
        return self.request.command

    @property
    def runtime(self) -> Runtime:
        """What starts it."""
        return RUNTIMES[self.plan.runtime]

    def notes(self) -> list[str]:
        """What is said before it starts: which image and how."""
        out = [f"{self.artifact.stack} ({self.why}) by {self.plan.runtime} ({self.plan.reason})"]
        if self.runtime.uses_slurm and self._is_without_home():
            out.append(
                "your home directory is not in the container, only this folder and what is "
                "mounted: --home"
            )
        return out

    def warnings(self) -> list[str]:
        """What may not be as its user expects."""
        plan, cwd = self.plan, Path.cwd()
        out = [self.doubt] if self.doubt else []
        if not self.runtime.uses_slurm:
            return out
        if self.request.home and not home_to_mount() and "home" not in self.runtime.brings:
            out.append(
                f"{Path.home()} cannot be mounted; libraries that keep a cache there need "
                f"another place: HF_HOME, ..."
            )
        if str(cwd) == "/":
            out.append(
                "/ is not mounted: it runs in the image's own folder; cd to the one with your "
                "program"
            )
        if asks_for_a_terminal(self.command) and not on_terminal(plan.parts):
            out.append(
                f"{self.command[0]} waits for somebody to type: --pty before the `--` gives it "
                f"this terminal"
            )
        if not os.environ.get("SLURM_STEP_ID"):
            with contextlib.suppress(OSError):
                mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
                if why := own_folder(cwd, self.site.store, mounts):
                    out.append(f"{why}; nodes that lack it cannot start the step")
        gone = [one for one in self.request.mounts if not Path(one.partition(":")[0]).exists()]
        out += [
            f"{one.partition(':')[0]} does not exist on this machine; nodes must have it"
            for one in gone
        ]
        if own := note_own_torch(self.artifact, self.command, cwd):
            out.append(f"{own}")
        if unseen := not_here(plan.brought):
            out.append(
                f"not on this machine, and so not looked at: {', '.join(unseen)}; nodes must "
                f"have it"
            )
        if plan.ranks == 1 < plan.virtual_gpus:
            out.append(
                f"no GPU is behind the {plan.virtual_gpus} of each node here: one rank per "
                f"node; --nproc-per-node N"
            )
        return out

    def _is_without_home(self) -> bool:
        """Whether the home directory is not in the container, though the user did not say so."""
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
        """What must be there before the nodes are asked for: added packages."""
        if self.added:
            make_added(self.added, self.artifact, self.site, self.runner, progress)

    def script(self, *, batch: bool) -> str:
        """What would be run, as a script with the reason for each line; BATCH: as a job of its own."""
        return render_script(
            self.plan, self.artifact, self.why, list_directives(self.plan) if batch else ()
        )

    def outline(self, *, batch: bool) -> str:
        """What would be run, in a few lines: Slurm's program, its options, the command."""
        return render_outline(self.plan, self.command, batch=batch)

    def document(self) -> dict[str, Any]:
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
        }

    def run(self) -> tuple[int, str]:
        """The status of the rank that failed first, or 0; and the one line that says what happened,
        where it is due.

        What takes more than a step (something is brought to the nodes first, the end of the job's
        time is asked for) is the script in an allocation, and the script says what happened.
        """
        folder, failure = self._record(), Failure()
        screen = Screen(failure) if self._is_screened() else None
        argv, errors = self.plan.argv, Stderr(folder, failure.feed, screen)
        scripted = bool(
            self.plan.staged or self.plan.grace or self.plan.watchdog or self.plan.spare
        )
        heard = self.runtime.uses_slurm and not on_terminal(self.plan.parts)
        watched = heard and not scripted
        interruption = Interruption(folder, self.runner, errors, screen) if heard else None
        own = {"HPCSTACK_RUN": str(folder), **self._seen_by_gc()}
        if scripted:
            self._write_script(folder)
            argv = ("bash", str(folder / record.SCRIPT))
            if not allocation_of(os.environ):
                argv = (*make_salloc_line(self.plan), *argv)
                own["HPCSTACK_LAUNCHER"] = str(os.getpid())
        status = self.runner.attached(
            argv,
            env={**self.plan.environment, **own},
            meanwhile=None if scripted else lambda: self._write_script(folder),
            errors=errors if heard else None,
            ending=interruption,
            is_script=scripted,
        )
        if heard:
            write_stderr(errors.end())
        last = ""
        interrupted = bool(interruption and interruption.has_come)
        if watched and not interrupted:
            status, said = failure.end(status)
            last = last_line(said, status, str(errors.path)) if status else ""
            if last:
                errors.add(last)
        if interruption and interrupted:
            status, last = interruption.end(failure)
            errors.add(last)
        elif screen and screen.left_out:
            lines = format_count(screen.left_out, "more line")
            more = f"hpcstack: {lines} of what came of it: hpcstack logs, or launch --all"
            last = "\n".join(filter(None, (more, last)))
        record.write_end(folder, status, interrupted=interrupted)
        return status, last

    def _is_screened(self) -> bool:
        """Whether what is said after a rank's failure may be left out: the step is over then, and
        somebody watches.
        """
        goes_on = self.request.goes_on or "--kill-on-bad-exit=0" in self.plan.argv
        into_a_jobs_log = bool(allocation_of(os.environ)) and not os.isatty(
            2
        )  # which is read later, and searched
        return not (self.request.all_stderr or goes_on or into_a_jobs_log)

    def _seen_by_gc(self) -> dict[str, str]:
        """In an allocation launchers/on-node/began.sh writes the image's key into the job."""
        return {"HPCSTACK_KEY": self.artifact.key} if allocation_of(os.environ) else {}

    def _write_script(self, folder: Path, job: tuple[Part, ...] = ()) -> None:
        try:
            record.write_script(folder, render_script(self.plan, self.artifact, self.why, job))
        except OSError as error:
            what = f"the launch was not written down: {error.strerror} ({error.filename or folder})"
            raise StoreError(what, f"make room in {folder.parent}: quota, df") from None

    def _record(self) -> Path:
        """The launch's folder.

        Where the home directory is full, the launch runs all the same, and is kept in /tmp.
        """
        settings = all_of(list(self.plan.settings), self.artifact.environment, os.environ)
        wanted = self.added.wanted if self.added else ()
        told = (self.plan, self.artifact, self.why, self.command, settings, os.environ, wanted)
        try:
            return record.begin_record(*told)
        except OSError as error:
            why = f"{state_folder()} cannot be written: {error.strerror or error}"
        try:
            top = Path(tempfile.mkdtemp(prefix="hpcstack-launches-"))
            kept = (
                f"this launch is kept in {top} alone, where `hpcstack logs` and `explain` do not "
                f"look"
            )
            write_stderr(f"* NOTE: {why}; {kept}\n".encode(errors="replace"))
            return record.begin_record(*told, top=top)
        except OSError as error:
            raise StoreError(
                f"{why}, and {tempfile.gettempdir()} neither: {error.strerror}", "make room"
            ) from None

    def submit(self) -> Submitted:
        """The launch as a batch job.

        SlurmError where it is refused, InputError where it could not write its output.
        """
        where = Path(self._output("0")).parent
        if where.is_dir() and not os.access(where, os.W_OK):
            raise InputError(
                f"{where} cannot be written, and the job's output would go there",
                "cd to a folder of yours, or --output=/scratch/%x-%j.out",
            )
        folder = self._record()
        self._write_script(folder, list_directives(self.plan))
        script = folder / record.SCRIPT
        try:
            job = submit_job(script, self.runner, env={"HPCSTACK_RUN": str(folder)})
        except SlurmError:
            record.write_end(folder, OWN_FAILURE)
            raise
        record.write_submitted(folder, job)
        output = self._output(job)
        record.write_output_path(folder, output)
        return Submitted(job, folder, script, Path(output))

    def _output(self, job: str) -> str:
        """Where the job writes, as Slurm fills in the pattern:
        https://slurm.schedmd.com/sbatch.html.
        """
        outputs = [part.value for part in list_directives(self.plan) if part.option == "--output"]
        pattern = outputs[-1]
        named = [part.value for part in self.plan.parts if part.option == "--job-name"]
        array = any(part.option == "--array" for part in self.plan.parts)
        own = (
            () if array else (("%j", job),)
        )  # of an array's task %j is a number that nobody knows yet
        for sign, value in (("%x", named[-1] if named else self.artifact.stack), ("%A", job), *own):
            pattern = pattern.replace(sign, value)
        return str(Path.cwd() / pattern)

    def refusal(self) -> str:
        """Why it could not start: the image, the command in it, and what Slurm itself says; empty
        where it could.
        """
        return self.missing() or self._slurm_says()

    def missing(self) -> str:
        """What is not there: the image, or the command in it."""
        artifact = self.artifact
        if not artifact.image.is_file():
            return f"{artifact.image} is gone: hpcstack build {artifact.stack}"
        if self.added:  # a command may come with what is added, which is made when the launch is
            return ""
        staged = self.plan.staged.sources if self.plan.staged else ()
        home = (f"{Path.home()}:{Path.home()}",) if self.request.home else ()
        tmp = ("/tmp:/tmp",) if "tmp" in self.runtime.brings else ()
        nccl = nccl_of(artifact)
        if self.plan.brought and (
            misfit := find_misfit(self.plan.brought, artifact.image, artifact.platform, nccl)
        ):
            return misfit
        mounts = (*home, *tmp, *self.site.mounts, *artifact.mounts, *self.request.mounts, *staged)
        look = not (
            self.plan.staged and self.plan.staged.image
        )  # a shared image that is staged is not read once more
        return explain_missing_command(artifact, self.command, Path.cwd(), mounts, look=look)

    def _slurm_says(self) -> str:
        """What sbatch would refuse, asked without a job; nothing where there is no Slurm."""
        if (
            not self.runner.has("sbatch")
            or self.plan.argv[0] != "srun"
            or allocation_of(os.environ)
        ):
            return ""
        with record.write_scratch_script(self.script(batch=True)) as path:
            return find_refusal(path, self.runner)
