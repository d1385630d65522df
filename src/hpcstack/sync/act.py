"""Carries out the steps of a plan, one at a time. Each ends as a verb of its own would.

Tested in tests/integration/test_syncing.py.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from hpcstack.build.batch import BatchBuild, build_on_slurm
from hpcstack.build.options import BuildOptions
from hpcstack.core.errors import (
    AnswerIsNo,
    BuildError,
    HpcstackError,
    InputError,
    SlurmError,
    format_count,
)
from hpcstack.launch.resources import Resources
from hpcstack.launch.surroundings import look_around
from hpcstack.lock.file import LockFile
from hpcstack.publish.repair import repair_names
from hpcstack.publish.reports import share_report
from hpcstack.releases.changes import choose_default, describe_days, retire_version
from hpcstack.releases.inputs import stamp_today
from hpcstack.releases.ledger import Dates
from hpcstack.resolve.build_stack import build_stack
from hpcstack.resolve.make_lock import make_lock
from hpcstack.slurm.options import SlurmOptions
from hpcstack.suite.judged_run import run_and_judge
from hpcstack.suite.run import SuiteRequest
from hpcstack.sync.look import choose_tier, make_strict_site
from hpcstack.sync.plan import OF_SYNC

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpcstack.publish.publisher import Publisher
    from hpcstack.releases.ledger import Event, Ledger
    from hpcstack.sync.declaration import Builds, Declared
    from hpcstack.sync.look import Means
    from hpcstack.sync.plan import SyncStep


REFUSED = "Unable to allocate resources"  # srun, in libsrun/allocate.c
SLACK_S = 5.0  # so much earlier than asked for, srun may give up waiting for nodes


class NoNodesInTime(SlurmError):
    """A test was given no nodes in the time that the declaration allows."""


def carry_out(step: SyncStep, name: str, declared: Declared, reason: str, means: Means) -> str:
    """Do STEP, which is about NAME, and return in words what came of it.

    REASON goes into the history. Raise HpcstackError where it cannot be done.
    """
    acts: dict[str, Callable[[], str]] = {
        "repair": lambda: _repair(name, means),
        "rebuild": lambda: _rebuild(name, means),
        "lock": lambda: _lock(step, means),
        "build": lambda: _build_here(step, means),
        "pull": lambda: _pull(step, declared, means),
        "test": lambda: _test(step, declared, means),
        "publish": lambda: _publish(step, reason, means),
        "promote": lambda: _promote(step, declared, reason, means),
    }
    if step.verb in acts:
        return acts[step.verb]()
    return _change(step, name, reason, means)


def _repair(name: str, means: Means) -> str:
    done = repair_names(means.publisher, [name])
    left = [one for one in done.left if one.repair != "image"]
    if left:
        raise AnswerIsNo(str(left[0]), f"hpcstack repair {name}")
    return f"repaired {format_count(len(done.mended), 'file')}"


def _rebuild(name: str, means: Means) -> str:
    """Bring back the images of NAME to the same bytes, and read those that are back already."""
    from hpcstack.publish.rebuild import list_releases_without_images, rebuild_images

    releases = list_releases_without_images(means.publisher, [name])
    done = rebuild_images(means.publisher, means.bench, releases)
    for one in done:
        if one.failed:
            raise AnswerIsNo(f"the image of {one.release} is not back: {one.failed}", one.remedy)
    return f"{', '.join(one.release for one in done)} restored to the same bytes"


def _lock(step: SyncStep, means: Means) -> str:
    recipe = means.catalog.find(step.subject)
    path = LockFile(recipe, means.site).write(make_lock(recipe, means.bench))
    return f"wrote {path}: commit it"


def _build_here(step: SyncStep, means: Means) -> str:
    options = BuildOptions(platform=means.site.tree_platform)
    built = build_stack(means.catalog.find(step.subject), options, means.bench)
    return str(built.artifact.image)


def build_as_jobs(
    steps: Sequence[SyncStep], builds: Builds, means: Means
) -> dict[SyncStep, str | HpcstackError]:
    """Build what STEPS ask for as jobs, and wait for them. Return what came of each."""
    site, bench = means.site, means.bench
    batch = []
    for step in steps:
        platform = site.tree_platform or means.catalog.find(step.subject).stack.base.platforms[0]
        words = BuildOptions(platform=platform).words()
        batch.append(BatchBuild(step.subject, platform, tuple(words)))
    try:
        outcomes = build_on_slurm(
            batch,
            site,
            means.words,
            builds.limit,
            builds.partition,
            bench.runner,
            bench.progress,
            hint="build.partition of the declaration names another one",
        )
    except HpcstackError as error:
        return dict.fromkeys(steps, error)

    by_stack = {one.stack: one for one in outcomes}
    out: dict[SyncStep, str | HpcstackError] = {}
    for step in steps:
        outcome = by_stack[step.subject]
        if outcome.status == 0:
            out[step] = str(outcome.artifact.get("image", "built"))
            continue
        said = _find_error_line(outcome.said)
        failed = BuildError(said or "the build failed", f"its log: {outcome.log}")
        failed.exit_code = outcome.status
        out[step] = failed
    return out


def _find_error_line(said: str) -> str:
    """Return the line of hpcstack's own output SAID that tells the error; else the last one."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR: ")]
    return errors[-1].removeprefix("ERROR: ") if errors else "".join(lines[-1:])


def _pull(step: SyncStep, declared: Declared, means: Means) -> str:
    from hpcstack.publish.pull_image import pull_image, read_pushed

    image = f"{declared.pull_from}:{step.version}"
    registry = means.bench.registry
    pushed = read_pushed(image, "", registry, platform=means.site.tree_platform)
    if pushed.attested.lock.stack != step.subject:
        raise InputError(
            f"{image} is {pushed.attested.lock.stack}, not {step.subject}",
            "`from` in the declaration",
            page="declare-releases",
        )
    return str(pull_image(pushed, means.catalog.find, means.bench).image)


def _test(step: SyncStep, declared: Declared, means: Means) -> str:
    """Run the suite in the image on the step's partition. A verdict is an answer, whatever it is."""
    site, bench, prove = means.site, means.bench, declared.prove
    stack = means.catalog.find(step.subject).stack
    image = means.publisher.store.artifact(step.image)
    if image is None:
        raise AnswerIsNo(
            f"the image of {step.subject} that was to be tested is gone",
            "run hpcstack sync again",
            page="declare-releases",
        )
    # Nobody waits for a queue forever: what gets no nodes in time is tried again by the next sync.
    limit = SlurmOptions.parse((f"--immediate={prove.wait * 60}",))
    asked = Resources(nodes=prove.nodes, partition=step.partition, time=prove.time, extra=limit)
    tier = choose_tier(site, prove)
    around = look_around("auto", site, bench.runner)
    began = time.monotonic()
    try:
        report, folder = run_and_judge(
            stack, image, SuiteRequest(tier=tier), asked, around, bench.progress
        )
    except SlurmError as error:
        # A step that was never given nodes ends by srun's own words, and when its time is over.
        waited = time.monotonic() - began >= prove.wait * 60 - SLACK_S
        if not waited or REFUSED not in error.message:
            raise
        raise NoNodesInTime(
            f"no nodes within {format_count(prove.wait, 'minute')}: the next sync tries again",
            error.hint,
        ) from None
    share_report(report, means.publisher.store)
    return f"{report.verdict()}: {folder}"


def _publish(step: SyncStep, reason: str, means: Means) -> str:
    from hpcstack.publish.make_release import (
        ReleaseRequest,
        find_candidate_of_recipe,
        release_candidate,
    )

    recipe = means.catalog.find(step.subject)
    request = ReleaseRequest(reason=reason, key=step.image)
    done = release_candidate(
        find_candidate_of_recipe(recipe, request, means.publisher), request, means.publisher
    )
    return f"{done.release}: {done.load}"


def _promote(step: SyncStep, declared: Declared, reason: str, means: Means) -> str:
    from hpcstack.publish.make_release import (
        ReleaseRequest,
        find_candidate_of_release,
        release_candidate,
    )

    publisher = _with_strict_gate(declared, means)
    request = ReleaseRequest("production", reason=reason)
    candidate = find_candidate_of_release(step.subject, request, publisher)
    done = release_candidate(candidate, request, means.publisher)
    return f"{done.release}: {done.load}"


def _with_strict_gate(declared: Declared, means: Means) -> Publisher:
    return replace(means.publisher, site=make_strict_site(means.site, declared.prove))


def _change(step: SyncStep, name: str, reason: str, means: Means) -> str:
    """Choose the default, or give a version its dates."""

    def act(ledger: Ledger, event: Event) -> Ledger:
        if step.verb == "default":
            return choose_default(ledger, step.version, event)
        dates = step.dates
        assert dates is not None
        return retire_version(ledger, step.version, dates, stamp_today(), event)

    # The plan has seen to it that what is declared can be loaded in its place.
    is_meant = step.verb == "retire"
    after = means.publisher.change(name, OF_SYNC + step.verb, act, reason, force=is_meant)
    return _describe_change(step, after)


def _describe_change(step: SyncStep, after: Ledger) -> str:
    if step.verb == "default":
        return f"module load {after.name} is {after.default or 'nothing'}"
    days = describe_days(after.dates.get(step.version, Dates()))
    return days or "it is no longer retired"
