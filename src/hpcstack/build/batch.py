"""Build images by Slurm batch jobs, on the nodes' local disks, and follow their logs.

The builds of a platform are one job array, on nodes of that platform.
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
from hpcstack.site.own_command import find_hpcstack_on
from hpcstack.slurm.client import Client
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
    """How one build ended.

    `status` is hpcstack's exit code. `artifact` is the record of the image, as JSON, where the job
    wrote one. `said` are the last lines of a failed build's log.
    """

    stack: str
    status: int
    log: Path
    artifact: dict[str, Any] = field(default_factory=dict)
    said: str = ""
    platform: str = ""


@dataclass(frozen=True)
class BatchBuild:
    """One image to build: `words` are the options of `hpcstack build` for it."""

    stack: str
    platform: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class _Element:
    """A submitted build: one element of a job array."""

    build: BatchBuild
    job: str  # the array's job id
    name: str  # what people read
    base: Path  # the path of its log, status and answer, without their suffixes

    @property
    def log(self) -> Path:
        return self.base.with_name(f"{self.base.name}.log")


def find_partition(platform: str, site: Site) -> str:
    """Return the partition whose nodes build images for PLATFORM; empty if the site names none.

    It is the default partition if that fits, else the first that does. Raise InputError where the
    site names partitions and none has nodes of PLATFORM.
    """
    if not site.partitions:
        return ""

    default_first = sorted(site.partitions, key=lambda name: not site.partitions[name].default)
    fitting = [
        name
        for name in default_first
        if all(site.node_types[kind].platform == platform for kind in site.kinds(name))
    ]
    if not fitting:
        raise InputError(
            f"no partition of site.yaml has nodes for {platform}",
            "choose one by --partition NAME; or correct the `architecture` of a node type in "
            "site.yaml",
            page="two-architectures",
        )
    return fitting[0]


def render_batch_script(
    stacks: Sequence[str],
    logs: Path,
    command: Sequence[str],
    rest: Sequence[str],
    options: Sequence[str],
) -> str:
    """Return the batch script that builds STACKS, one per element of the array."""
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
    hint: str = "hpcstack build --partition names another one",
) -> list[BuildOutcome]:
    """Build BUILDS by job arrays of which at most LIMIT elements run at once, and wait for all.

    They run in PARTITION, or by default where nodes of their platform are. OWN are hpcstack's
    global options. HINT says what to do where Slurm refuses them. The outcomes are in the order of
    the arrays. Whatever interrupts it, the jobs that it has submitted are cancelled.
    """
    store = open_store(site)
    logs = store.top / "logs" / f"batch-{uuid.uuid4().hex[:8]}"

    # An array's elements differ only in their stacks: platform and options are the job's.
    alike: dict[tuple[str, tuple[str, ...]], list[BatchBuild]] = {}
    for one in builds:
        alike.setdefault((one.platform, one.words), []).append(one)

    # What is wrong with these is raised here, before any job is in the queue.
    places = {platform: partition or find_partition(platform, site) for platform, _ in alike}
    commands = {place: find_hpcstack_on(site.node_type(place)) for place in places.values()}

    slurm = Client(runner)
    several = len({one.platform for one in builds}) > 1
    elements: list[_Element] = []
    try:
        for turn, ((platform, words), same) in enumerate(alike.items()):
            stacks = [one.stack for one in same]
            place = places[platform]
            options = [f"--array=0-{len(stacks) - 1}%{limit}"]
            if place:
                options.append(f"--partition={place}")

            text = render_batch_script(stacks, logs, [*commands[place], *own], words, options)
            path = logs / (f"build-{turn}.sbatch" if turn else "build.sbatch")
            with store.acting("the job was not written"):
                write_text(path, text)
            job = slurm.submit_job(path, hint=hint)

            where = f" for {platform} in {place}" if several else ""
            progress(
                f"job {job}: {format_count(len(stacks), 'build')}{where}, at most {limit} at "
                f"once; logs in {logs}"
            )
            for number, one in enumerate(same):
                name = f"{one.stack} ({platform})" if several else one.stack
                elements.append(_Element(one, job, name, logs / f"{job}_{number}"))
        return _follow(elements, runner, progress)
    except BaseException:
        if elements:
            slurm.abandon(sorted({one.job for one in elements}))
        raise


def _follow(elements: Sequence[_Element], runner: Runner, progress: Progress) -> list[BuildOutcome]:
    """Wait until every element has ended, report new lines of their logs, and return the outcomes.

    An element writes its status to a file. Where that is missing, and the job has been gone from
    the queue for LOST_S seconds, the element counts as lost.
    """
    read = dict.fromkeys(elements, 0)
    ended: dict[_Element, BuildOutcome] = {}
    gone_since: dict[str, float] = {}

    while len(ended) < len(elements):
        time.sleep(POLL_S)

        for one in elements:
            read[one] = _report_new_lines(one.log, read[one], one.name, progress)
            outcome = _read_outcome(one) if one not in ended else None
            if outcome:
                ended[one] = outcome
                verdict = "built" if outcome.status == 0 else f"FAILED (exit {outcome.status})"
                progress(f"{one.name}: {verdict}")

        for job in sorted({one.job for one in elements if one not in ended}):
            if _is_in_queue(job, runner):
                gone_since.pop(job, None)
                continue

            since = gone_since.setdefault(job, time.monotonic())
            if time.monotonic() - since > LOST_S:
                lost = {one: _make_lost(one) for one in elements if one.job == job}
                ended = lost | ended
    return [ended[one] for one in elements]


def _is_in_queue(job: str, runner: Runner) -> bool:
    """Return whether JOB waits or runs. Where Slurm does not say, it counts as if it did."""
    queued = Client(runner).query_queue([job])
    return queued is None or bool(queued)


def _report_new_lines(log: Path, start: int, stack: str, progress: Progress) -> int:
    """Report the whole lines of LOG from byte START on; return the byte from which to go on."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(start)
        data = file.read()
        whole = data.rpartition(b"\n")[0]
        for line in whole.decode(errors="replace").splitlines():
            progress(f"{stack}: {line.removeprefix('* ')}")
        if whole:
            return start + len(whole) + 1
    return start


def _read_outcome(element: _Element) -> BuildOutcome | None:
    """Return how ELEMENT ended; None while it has not written its status."""
    base = element.base
    build = element.build
    try:
        status = int(base.with_name(f"{base.name}.status").read_text())
    except (OSError, ValueError):
        return None

    artifact: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        artifact = json.loads(base.with_name(f"{base.name}.json").read_text())

    said = ""
    if status:
        with contextlib.suppress(OSError):
            said = "\n".join(element.log.read_text(errors="replace").splitlines()[-20:])
    return BuildOutcome(build.stack, status, element.log, artifact, said, build.platform)


def _make_lost(element: _Element) -> BuildOutcome:
    """Return the outcome of ELEMENT, whose job ended without writing a status."""
    build = element.build
    return BuildOutcome(
        build.stack,
        SlurmError.exit_code,
        element.log,
        said="the job ended without a result",
        platform=build.platform,
    )


def find_failures(outcomes: Sequence[BuildOutcome]) -> BuildError | None:
    """Return the error that names all failed OUTCOMES; None where all succeeded.

    Its exit code is that of the first failure.
    """
    wrong = [one for one in outcomes if one.status]
    if not wrong:
        return None

    error = BuildError(
        f"{len(wrong)} of {len(outcomes)} builds failed: {', '.join(one.stack for one in wrong)}",
        f"their logs: {', '.join(str(one.log) for one in wrong[:3])}",
        page="build-many-images",
    )
    error.exit_code = wrong[0].status
    return error
