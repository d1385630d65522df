"""Builds as batch jobs: one array, an element a stack, on the nodes' local disks; their logs are followed here."""

from __future__ import annotations

import contextlib
import json
import sys
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpcstack.core.errors import BuildError, SlurmError
from hpcstack.core.files import write_text
from hpcstack.render.template import fill
from hpcstack.slurm.jobs import cancel, submit
from hpcstack.store.store import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hpcstack.core.process import Runner
    from hpcstack.core.progress import Progress
    from hpcstack.site.load import Site

POLL_S = 1.0
LOST_S = 60.0  # a shared filesystem may show a file later than Slurm ends its job


@dataclass
class BuildOutcome:
    """How one stack's build ended: hpcstack's own exit code, the artifact where there is one, its log."""

    stack: str
    status: int
    log: Path
    artifact: dict[str, Any] = field(default_factory=dict)
    said: str = ""


def script(
    stacks: Sequence[str], logs: Path, command: Sequence[str], rest: Sequence[str], options: Sequence[str]
) -> str:
    """The batch script that builds STACKS."""
    return fill(
        "launchers", "jobs/build.sbatch.j2", stacks=stacks, logs=logs, command=command, rest=rest, options=options
    )


def build_on_slurm(
    stacks: Sequence[str], site: Site, own: Sequence[str], rest: Sequence[str], limit: int, partition: str,
    runner: Runner, progress: Progress,
) -> list[BuildOutcome]:  # fmt: skip
    """STACKS built by a job array, at most LIMIT at once. OWN are hpcstack's own options, REST those of build.

    Interrupted, it cancels what it has submitted.
    """
    store = open_store(site)
    logs = store.top / "logs" / f"batch-{uuid.uuid4().hex[:8]}"
    options = [f"--array=0-{len(stacks) - 1}%{limit}"] + ([f"--partition={partition}"] if partition else [])
    text = script(stacks, logs, [sys.executable, "-m", "hpcstack", *own], rest, options)
    with store.acting("the job was not written"):
        write_text(logs / "build.sbatch", text)
    job = submit(logs / "build.sbatch", runner, hint="hpcstack build --partition names another one")
    progress(f"job {job}: {len(stacks)} build{'s' * (len(stacks) > 1)}, at most {limit} at once; logs in {logs}")
    try:
        return _follow(stacks, logs, job, runner, progress)
    except BaseException:
        cancel([job], runner)
        raise


def _follow(stacks: Sequence[str], logs: Path, job: str, runner: Runner, progress: Progress) -> list[BuildOutcome]:
    """Until every element has ended; lines of their logs as they come."""
    read = dict.fromkeys(range(len(stacks)), 0)
    ended: dict[int, BuildOutcome] = {}
    gone_since = 0.0
    while len(ended) < len(stacks):
        time.sleep(POLL_S)
        for number, stack in enumerate(stacks):
            read[number] = _tell(logs / f"{job}_{number}.log", read[number], stack, progress)
            if number not in ended and (found := _ended(stack, logs / f"{job}_{number}")):
                ended[number] = found
                progress(f"{stack}: {'built' if found.status == 0 else f'FAILED (exit {found.status})'}")
        state = runner.output(["squeue", "--noheader", "--jobs", job, "--format", "%T %r"])
        known = state.status == 0 or "Invalid job id" in " ".join(state.tail)
        if state.stdout.strip() or not known:  # who does not answer has not said that the job is gone
            gone_since = 0.0
            continue
        gone_since = gone_since or time.monotonic()
        if time.monotonic() - gone_since > LOST_S:
            for number, stack in enumerate(stacks):
                log = logs / f"{job}_{number}.log"
                ended.setdefault(
                    number, BuildOutcome(stack, SlurmError.exit_code, log, said="the job ended without a result")
                )
    return [ended[number] for number in range(len(stacks))]


def _tell(log: Path, start: int, stack: str, progress: Progress) -> int:
    """New whole lines of LOG; how far it has been read."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(start)
        data = file.read()
        whole = data.rpartition(b"\n")[0]
        for line in whole.decode(errors="replace").splitlines():
            progress(f"{stack}: {line.removeprefix('* ')}")
        return start + (len(whole) + 1 if whole else 0)
    return start


def _ended(stack: str, base: Path) -> BuildOutcome | None:
    try:
        status = int(base.with_name(f"{base.name}.status").read_text())
    except (OSError, ValueError):
        return None
    log = base.with_name(f"{base.name}.log")
    artifact: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        artifact = json.loads(base.with_name(f"{base.name}.json").read_text())
    said = ""
    with contextlib.suppress(OSError):
        said = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
    return BuildOutcome(stack, status, log, artifact, "" if status == 0 else said)


def find_failures(outcomes: Sequence[BuildOutcome]) -> BuildError | None:
    """What is raised in the end where one or more have failed."""
    wrong = [one for one in outcomes if one.status]
    if not wrong:
        return None
    error = BuildError(
        f"{len(wrong)} of {len(outcomes)} builds failed: {', '.join(one.stack for one in wrong)}",
        f"their logs: {', '.join(str(one.log) for one in wrong[:3])}",
    )
    error.exit_code = wrong[0].status  # the first one's own kind
    return error
