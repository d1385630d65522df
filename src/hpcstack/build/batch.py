"""Builds as batch jobs, on the nodes' local disks: an array for each platform, on nodes of its
kind. Their logs are followed here.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpcstack.core.errors import BuildError, InputError, SlurmError, format_count
from hpcstack.core.files import write_text
from hpcstack.render.template import fill_template
from hpcstack.site.own_command import hpcstack_on
from hpcstack.slurm.jobs import cancel_jobs, submit_job
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
    """How one stack's build ended: hpcstack's own exit code, the artifact where there is one, its
    log.
    """

    stack: str
    status: int
    log: Path
    artifact: dict[str, Any] = field(default_factory=dict)
    said: str = ""
    platform: str = ""


@dataclass(frozen=True)
class BatchBuild:
    """One image to build: of STACK, for PLATFORM, with these WORDS of `hpcstack build`."""

    stack: str
    platform: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class _Element:
    """A build in the queue, an element of an array's JOB, called NAME where people read it."""

    build: BatchBuild
    job: str
    name: str
    base: Path  # of its log, its status and its answer

    @property
    def log(self) -> Path:
        return self.base.with_name(f"{self.base.name}.log")


def partition_of(platform: str, site: Site) -> str:
    """The partition whose nodes build images for PLATFORM: the default one if they can, else the
    first; empty where the site names no partitions. InputError where it does, and none can.
    """
    if not site.partitions:
        return ""
    default_first = sorted(site.partitions, key=lambda name: not site.partitions[name].default)
    fitting = [
        name
        for name in default_first
        if site.node_types[site.partitions[name].node_type].platform == platform
    ]
    if not fitting:
        raise InputError(
            f"no partition of site.yaml has nodes for {platform}",
            (
                "--partition NAME builds there all the same; or: architecture of a node type in "
                "site.yaml"
            ),
        )
    return fitting[0]


def render_batch_script(
    stacks: Sequence[str],
    logs: Path,
    command: Sequence[str],
    rest: Sequence[str],
    options: Sequence[str],
) -> str:
    """The batch script that builds STACKS."""
    return fill_template(
        "launchers",
        "jobs/build.sbatch.j2",
        stacks=stacks,
        logs=logs,
        command=command,
        rest=rest,
        options=options,
    )


def build_on_slurm(
    builds: Sequence[BatchBuild],
    site: Site,
    own: Sequence[str],
    limit: int,
    partition: str,
    runner: Runner,
    progress: Progress,
) -> list[BuildOutcome]:
    """BUILDS by job arrays, of each at most LIMIT elements at once: in PARTITION, else where nodes
    of their kind are. OWN are hpcstack's own options.

    Interrupted, it cancels what it has submitted.
    """
    store = open_store(site)
    logs = store.top / "logs" / f"batch-{uuid.uuid4().hex[:8]}"
    alike: dict[tuple[str, tuple[str, ...]], list[BatchBuild]] = {}
    for one in builds:
        alike.setdefault((one.platform, one.words), []).append(one)
    places = {platform: partition or partition_of(platform, site) for platform, _ in alike}
    commands = {
        place: hpcstack_on(site.node_type(place)) for place in places.values()
    }  # told before any job waits
    several = len({one.platform for one in builds}) > 1
    elements: list[_Element] = []
    try:
        for turn, ((platform, words), same) in enumerate(alike.items()):
            stacks, place = [one.stack for one in same], places[platform]
            options = [f"--array=0-{len(stacks) - 1}%{limit}"] + (
                [f"--partition={place}"] if place else []
            )
            text = render_batch_script(stacks, logs, [*commands[place], *own], words, options)
            path = logs / (f"build-{turn}.sbatch" if turn else "build.sbatch")
            with store.acting("the job was not written"):
                write_text(path, text)
            job = submit_job(path, runner, hint="hpcstack build --partition names another one")
            where = f" for {platform} in {place}" if several else ""
            progress(
                f"job {job}: {format_count(len(stacks), 'build')}{where}, at most {limit} at "
                f"once; logs in {logs}"
            )
            elements += [
                _Element(
                    one,
                    job,
                    f"{one.stack} ({platform})" if several else one.stack,
                    logs / f"{job}_{number}",
                )
                for number, one in enumerate(same)
            ]
        return _follow(elements, runner, progress)
    except BaseException:
        if elements:
            cancel_jobs(sorted({one.job for one in elements}), runner)
        raise


def _follow(elements: Sequence[_Element], runner: Runner, progress: Progress) -> list[BuildOutcome]:
    """Until every element has ended; lines of their logs as they come."""
    read = dict.fromkeys(elements, 0)
    ended: dict[_Element, BuildOutcome] = {}
    gone_since: dict[str, float] = {}
    while len(ended) < len(elements):
        time.sleep(POLL_S)
        for one in elements:
            read[one] = _tell(one.log, read[one], one.name, progress)
            if one not in ended and (found := _ended(one)):
                ended[one] = found
                progress(
                    f"{one.name}: "
                    f"{'built' if found.status == 0 else f'FAILED (exit {found.status})'}"
                )
        for job in sorted({one.job for one in elements if one not in ended}):
            if _is_in_queue(job, runner):
                gone_since.pop(job, None)
                continue
            since = gone_since.setdefault(job, time.monotonic())
            if time.monotonic() - since > LOST_S:
                lost = {one: _lost(one) for one in elements if one.job == job}
                ended = lost | ended
    return [ended[one] for one in elements]


def _is_in_queue(job: str, runner: Runner) -> bool:
    """Whether JOB waits or runs; also where nobody says: who does not answer has not said that it
    is gone.
    """
    state = runner.output(["squeue", "--noheader", "--jobs", job, "--format", "%T %r"])
    is_known = state.status == 0 or "Invalid job id" in " ".join(state.tail)
    return bool(state.stdout.strip()) or not is_known


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


def _ended(element: _Element) -> BuildOutcome | None:
    """How ELEMENT ended; None while it has not."""
    base, build = element.base, element.build
    try:
        status = int(base.with_name(f"{base.name}.status").read_text())
    except (OSError, ValueError):
        return None
    artifact: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        artifact = json.loads(base.with_name(f"{base.name}.json").read_text())
    said = ""
    with contextlib.suppress(OSError):
        said = "\n".join(element.log.read_text(errors="replace").splitlines()[-20:])
    return BuildOutcome(
        build.stack, status, element.log, artifact, "" if status == 0 else said, build.platform
    )


def _lost(element: _Element) -> BuildOutcome:
    """ELEMENT, whose job ended without a word."""
    build, said = element.build, "the job ended without a result"
    return BuildOutcome(
        build.stack, SlurmError.exit_code, element.log, said=said, platform=build.platform
    )


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
