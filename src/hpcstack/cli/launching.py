"""What `hpcstack launch` does with a plan: shows, checks, runs or submits it."""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcstack.cli.session import Session, answer, say, show_progress
from hpcstack.core.errors import SlurmError, visible
from hpcstack.launch import record
from hpcstack.launch.failure import Failure, last_line
from hpcstack.launch.folders import own_folder
from hpcstack.launch.packages import Added, make
from hpcstack.launch.plan import OWN_FAILURE, Plan
from hpcstack.launch.preflight import missing
from hpcstack.launch.script import allocation, directives, on_terminal, text
from hpcstack.launch.stderr import Stderr
from hpcstack.launch.variables import all_of
from hpcstack.slurm.query import allocation as allocation_of

if TYPE_CHECKING:
    from hpcstack.runtimes import Part
    from hpcstack.store.artifact import Artifact


@dataclass(frozen=True)
class Launching:
    """One launch: its plan, the image and why that one, the command, and what is added to the image."""

    session: Session
    line: Plan
    artifact: Artifact
    why: str
    argv: tuple[str, ...]
    mounts: tuple[str, ...]
    added: Added | None

    def notes(self) -> list[str]:
        """What a user must know before it starts: which image and how, and what may not be as expected."""
        line, cwd = self.line, Path.cwd()
        out = [f"{self.artifact.stack} ({self.why}) by {line.runtime} ({line.reason})"]
        if line.runtime == "local":
            return out
        if line.runtime not in ("apptainer", "charliecloud") and not self._home():
            out.append("your home directory is not in the container, only this folder and what is mounted: --home")
        if not os.environ.get("SLURM_STEP_ID"):
            with contextlib.suppress(OSError):
                mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
                if why := own_folder(cwd, self.session.site.store, mounts):
                    out.append(f"NOTE: {why}; nodes that lack it cannot start the step")
        gone = [one for one in self.mounts if not Path(one.partition(":")[0]).exists()]
        out += [f"NOTE: {one.partition(':')[0]} does not exist on this machine; nodes must have it" for one in gone]
        if line.ranks == 1 < line.virtual_gpus:
            out.append(
                f"NOTE: no GPU is behind the {line.virtual_gpus} of each node here: one rank a node; --nproc-per-node N"
            )
        return out

    def _home(self) -> bool:
        home = str(Path.home())
        return any(mount.partition(":")[2].rstrip("/") == home for mount in (*self.mounts, *self.session.site.mounts))

    def prepare(self) -> None:
        """What must be there before the nodes are asked for: added packages."""
        if self.added:
            with show_progress("adding") as progress:
                make(self.added, self.artifact, self.session.site, self.session.runner, progress)

    def show(self, as_json: bool, *, batch: bool) -> None:
        line = self.line
        document = {
            "runtime": line.runtime, "reason": line.reason, "mode": line.mode, "argv": list(line.argv),
            "environment": [asdict(one) for one in line.settings], "image": str(self.artifact.image),
            "staged": line.staged.how if line.staged else "none",
        }  # fmt: skip
        answer(document, as_json, lambda: text(line, self.artifact, self.why, directives(line) if batch else ()))

    def run(self) -> int:
        """The status of the rank that failed first, or 0; what happened is said in one last line.

        What takes more than a step (something is brought to the nodes first, the end of the job's time is asked for) is
        the script in an allocation, and the script says what happened.
        """
        folder, failure = self._recorded(), Failure()
        argv, errors = self.line.argv, Stderr(folder, failure.feed)
        scripted = bool(self.line.staged or self.line.grace or self.line.watchdog)
        heard = self.line.runtime != "local" and not on_terminal(self.line.parts)
        watched = heard and not scripted
        if scripted:
            self._script(folder)
            argv = ("bash", str(folder / record.SCRIPT))
            if not allocation_of(os.environ):
                argv = (*allocation(self.line), *argv)
        status = self.session.runner.attached(
            argv, env={**self.line.environment, "HPCSTACK_RUN": str(folder), **self._seen_by_gc()},
            meanwhile=None if scripted else lambda: self._script(folder),
            errors=errors.feed if heard else None,
        )  # fmt: skip
        if heard:
            errors.end()
        if watched:
            status, said = failure.end(status)
            if status:
                click.echo(visible(last_line(said, status, str(errors.path))), err=True)
        record.end(folder, status)
        return status

    def _seen_by_gc(self) -> dict[str, str]:
        """In an allocation launchers/began.sh writes the image's key into the job."""
        return {"HPCSTACK_KEY": self.artifact.key} if allocation_of(os.environ) else {}

    def _script(self, folder: Path, job: tuple[Part, ...] = ()) -> None:
        with self.session.store.acting("the launch was not written down"):
            record.script(folder, text(self.line, self.artifact, self.why, job))

    def _recorded(self) -> Path:
        settings = all_of(list(self.line.settings), self.artifact.environment, os.environ)
        with self.session.store.acting("the launch was not written down"):
            wanted = self.added.wanted if self.added else ()
            return record.begin(self.line, self.artifact, self.why, self.argv, settings, os.environ, wanted)

    def submit(self, as_json: bool) -> None:
        folder = self._recorded()
        self._script(folder, directives(self.line))
        done = self.session.runner.output(
            [*_bare(), "sbatch", "--parsable", str(folder / record.SCRIPT)], env={"HPCSTACK_RUN": str(folder)}
        )
        job = done.stdout.strip().partition(";")[0]
        if done.status or not job.isdigit():
            record.end(folder, OWN_FAILURE)
            raise SlurmError(f"sbatch refused: {' '.join(done.tail[-2:])}", f"the script is {folder / record.SCRIPT}")
        record.submitted(folder, job)
        for note in self.notes():
            say(note)
        output = self._output(job)
        record.output(folder, output)
        say(f"the script is {folder / record.SCRIPT}")
        say(f"it writes to {output}: hpcstack logs {job}")
        answer({"job": job, "folder": str(folder), "output": output}, as_json, lambda: job)

    def _output(self, job: str) -> str:
        """Where the job writes, as Slurm fills in the pattern: https://slurm.schedmd.com/sbatch.html."""
        said = [part.words[0] for part in directives(self.line) if part.words[0].startswith("--output=")]
        pattern = said[-1].partition("=")[2]
        for sign, value in (("%x", self.artifact.stack), ("%j", job), ("%A", job)):
            pattern = pattern.replace(sign, value)
        return str(Path.cwd() / pattern)

    def check(self, as_json: bool) -> None:
        """Limits and driver were looked at when the plan was made; here the image, the command, and Slurm itself."""
        said = self.missing() or self._slurm_says()
        answer({"ok": not said, "said": said, "argv": list(self.line.argv)}, as_json, lambda: said or "it could start")
        raise click.exceptions.Exit(1 if said else 0)

    def missing(self) -> str:
        """What is not there: the image, or the command in it."""
        artifact = self.artifact
        if not artifact.image.is_file():
            return f"{artifact.image} is gone: hpcstack build {artifact.stack}"
        if self.added:  # a command may come with what is added, which is made when the launch is
            return ""
        staged = self.line.staged.sources if self.line.staged else ()
        home = (f"{Path.home()}:{Path.home()}",) if self.line.runtime in ("apptainer", "charliecloud", "local") else ()
        tmp = ("/tmp:/tmp",) if self.line.runtime in ("apptainer", "charliecloud", "local", "podman") else ()
        mounts = (*home, *tmp, *self.session.site.mounts, *artifact.mounts, *self.mounts, *staged)
        look = not (self.line.staged and self.line.staged.image)  # a shared image that is staged is not read once more
        return missing(artifact, self.argv, Path.cwd(), mounts, self.session.runner, look=look)

    def _slurm_says(self) -> str:
        """What sbatch would refuse, asked without a job; nothing where there is no Slurm."""
        if not self.session.runner.has("sbatch") or self.line.argv[0] != "srun" or allocation_of(os.environ):
            return ""
        script = text(self.line, self.artifact, self.why, directives(self.line))
        with record.scratch(script) as path:
            done = self.session.runner.output([*_bare(), "sbatch", "--test-only", str(path)])
        return f"sbatch would refuse it: {' '.join(done.tail[-2:])}" if done.status else ""


def _bare() -> list[str]:
    """`env` without the job that this shell may be in: a job of its own takes nothing over from it."""
    kept = ("SLURM_CONF", "SLURM_EXIT_ERROR", "SLURM_CLUSTERS")
    inherited = [name for name in os.environ if name.startswith("SLURM_") and name not in kept]
    inherited += [name for name in ("HPCSTACK_END", "HPCSTACK_END_JOB", "HPCSTACK_GRACE") if name in os.environ]
    return ["env", *(word for name in inherited for word in ("-u", name))]
