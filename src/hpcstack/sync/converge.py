"""Makes what is published what a folder declares. May be killed anywhere, and is then run again.

From run to run, only who was told what is remembered: each run looks at what is so, plans, takes
one step, and looks again. A version that fails stops there, and no other with it.

Tested in tests/integration/test_syncing.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from typing import TYPE_CHECKING

from hpcstack.core.clock import read_clock
from hpcstack.core.errors import (
    AnswerIsNo,
    HpcstackError,
    InputError,
    did_you_mean,
    format_count,
)
from hpcstack.core.lease import PATIENCE_S, hold_lease
from hpcstack.publish import gc
from hpcstack.publish.provenance import find_commit
from hpcstack.publish.purge import remove_items
from hpcstack.releases.tree import open_tree
from hpcstack.sync.act import NoNodesInTime, build_as_jobs, carry_out
from hpcstack.sync.look import look_at_name, read_known_recipes
from hpcstack.sync.plan import NamePlan, SyncStep, choose_versions, matches_any, plan_name
from hpcstack.sync.result import Deed, NameResult, SyncResult, make_failure, name_step
from hpcstack.sync.tell import begin_telling, tell_everybody

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from hpcstack.site.load import Site
    from hpcstack.sync.declaration import Prune
    from hpcstack.sync.folder import DeclaredFolder
    from hpcstack.sync.look import KnownRecipes, Means
    from hpcstack.sync.plan import Verb


def foretell_sync(folder: DeclaredFolder, means: Means, only: Sequence[str] = ()) -> SyncResult:
    """Return what differs from what FOLDER declares. Nothing is written.

    ONLY are the names that are looked at; by default all.
    """
    names = choose_names(folder, only)
    check_partitions(folder, names, means.site)
    result = _begin(folder, means, dry_run=True)
    known = read_known_recipes(means.catalog)
    runs = [_NameRun(name, folder, known, means, result.commit) for name in names]
    result.names = [run.finish() for run in runs]
    if folder.declaration.prune and not only:
        _foretell_pruning(folder.declaration.prune, _list_over(runs), means, result)
    return result


def converge_releases(folder: DeclaredFolder, means: Means, only: Sequence[str] = ()) -> SyncResult:
    """Do what is needed so that FOLDER is true, for the names ONLY or all. Return what was done.

    Raise AnswerIsNo where another sync of the same module tree is at work.
    """
    names = choose_names(folder, only)
    check_partitions(folder, names, means.site)
    with _alone(means):
        result = _begin(folder, means, dry_run=False)
        known = read_known_recipes(means.catalog)
        runs = [_NameRun(name, folder, known, means, result.commit) for name in names]
        declared = {name: folder.declaration.releases[name] for name in names}
        telling = begin_telling(find_state_of_sync(means), declared, means.publisher)

        for run in runs:
            run.repair("repair")
            run.bring_back()
        # What needs no build comes first: it does not wait for those that do.
        for run in runs:
            run.advance_versions()
        _build_all(runs, folder, means)
        for run in runs:
            run.advance_versions()
        for run in runs:
            run.repair("rebuild")
            run.change()
        if folder.declaration.prune and not only:
            _prune(folder.declaration.prune, _list_over(runs), means, result)

        result.names = [run.finish() for run in runs]
        result.notes += tell_everybody(telling, declared, result, means.publisher)
    return result


def choose_names(folder: DeclaredFolder, only: Sequence[str]) -> list[str]:
    """Return the declared names that ONLY asks for, or all. InputError for one that is not there."""
    known = folder.declaration.releases
    for name in only:
        if name not in known:
            raise InputError(
                f"{folder.folder} declares no {name!r}{did_you_mean(name, list(known))}",
                f"declared are: {', '.join(known)}",
                page="declare-releases",
            )
    return [name for name in known if not only or name in only]


def check_partitions(folder: DeclaredFolder, names: Sequence[str], site: Site) -> None:
    """Raise InputError for a partition of NAMES that SITE does not know."""
    for name in names:
        for one in folder.declaration.releases[name].prove.partitions:
            if site.partitions and one not in site.partitions:
                raise InputError(
                    f"{folder.files[name]}: {name}: site.yaml has no partition {one!r}"
                    f"{did_you_mean(one, list(site.partitions))}",
                    f"known: {', '.join(site.partitions)}",
                    page="declare-releases",
                )


def find_state_of_sync(means: Means) -> Path:
    """Return the folder where syncs of this module tree keep their lease and who was told what."""
    tree = hashlib.sha256(str(means.site.module_tree).encode()).hexdigest()[:12]
    return means.publisher.store.top / "sync" / tree


@contextlib.contextmanager
def _alone(means: Means) -> Iterator[None]:
    """Keep other syncs of this module tree out for the time of the block.

    One whose machine has died is noticed after a while, so a little is waited.
    """
    store, site = means.publisher.store, means.site
    folder = find_state_of_sync(means)
    owner: list[str] = []

    def note(who: str) -> None:
        owner.append(who)
        means.bench.progress(f"waiting for another sync: {who}")

    deadline = time.monotonic() + PATIENCE_S + 10
    with contextlib.ExitStack() as stack:
        with store.acting("sync cannot begin"):
            site.sharing.make_folder(folder.parent)
            lease = hold_lease(
                folder / "lease", note, lambda: time.monotonic() > deadline, site.sharing
            )
            held = stack.enter_context(lease)
        if not held:
            raise AnswerIsNo(
                f"another sync is at work: {owner[-1] if owner else folder}",
                "wait until it has ended",
                page="declare-releases",
            )
        yield


def _begin(folder: DeclaredFolder, means: Means, *, dry_run: bool) -> SyncResult:
    """Return an empty result, with what is published and not declared."""
    first = min(folder.files.values())
    tree = means.publisher.tree
    declared = folder.declaration.releases
    return SyncResult(
        site=means.site.name,
        folder=folder.folder,
        made=f"{read_clock():%Y-%m-%d %H:%M} UTC",
        commit=find_commit(first, means.bench.runner),
        dry_run=dry_run,
        undeclared=[name for name in tree.names() if name not in declared],
    )


class _NameRun:
    """One name in one run of sync: its plans, what was done, and which versions have failed."""

    def __init__(
        self, name: str, folder: DeclaredFolder, known: KnownRecipes, means: Means, commit: str
    ) -> None:
        self.name = name
        self.declared = folder.declaration.releases[name]
        self.file = folder.files[name]
        self.builds_here = folder.declaration.build.on == "here"
        self.known = known
        self.means = means
        at = f" at {commit[:12]}" if commit else ""
        self.reason = f"declared in {self.file.name}{at}"
        self.deeds: list[Deed] = []
        self.stopped: set[str] = set()  # versions that have failed in this run
        self.waiting: dict[str, str] = {}  # {version: why its test waits}
        self.tried: set[tuple[str, ...]] = set()

    def plan(self) -> NamePlan:
        """Return what is to be done, by what is so now."""
        try:
            seen = look_at_name(self.name, self.declared, self.known, self.means)
        except HpcstackError as error:  # one name that cannot be looked at holds up no other
            return NamePlan(self.name, (), notes=(("failed", error.message.splitlines()[0]),))
        return plan_name(self.name, self.declared, seen, read_clock())

    def repair(self, verb: Verb) -> None:
        """Mend files (VERB is repair), or images (rebuild): many of these are back by builds."""
        for step in self.plan().repairs:
            if step.verb == verb:
                self.do(step)

    def advance_versions(self) -> None:
        """Take the steps of each version, until it is as declared, fails, waits or is to be built."""
        while step := self._find_next():
            mark = _make_mark(step)
            if mark in self.tried:
                self.fail(
                    step, AnswerIsNo("it succeeded, and is still needed: look at what it left")
                )
                continue
            self.tried.add(mark)
            self.do(step)

    def _find_next(self) -> SyncStep | None:
        """Return the next step of a version that can go on."""
        for version in self.plan().versions:
            if version.version in self.stopped or not version.steps:
                continue
            step = version.steps[0]
            if version.version in self.waiting:
                # Another partition may have nodes. Nothing else goes on without the proof.
                tests = [one for one in version.steps if one.verb == "test"]
                left = [one for one in tests if _make_mark(one) not in self.tried]
                if not left:
                    continue
                step = left[0]
            if step.verb != "build" or self.builds_here:
                return step
        return None

    def bring_back(self) -> None:
        """Let versions be loaded again that sync had retired, and that are declared again."""
        for step in self.plan().returns:
            self.do(step)

    def list_builds(self) -> list[SyncStep]:
        """Return the builds that the versions wait for."""
        return [
            one.steps[0]
            for one in self.plan().versions
            if one.steps and one.steps[0].verb == "build" and one.version not in self.stopped
        ]

    def change(self) -> None:
        """Choose the default, and retire what is over."""
        for step in self.plan().changes:
            self.do(step)

    def do(self, step: SyncStep) -> None:
        """Take STEP, and keep what came of it."""
        progress = self.means.bench.progress
        progress(str(step))
        try:
            said = carry_out(step, self.name, self.declared, self.reason, self.means)
        except NoNodesInTime as error:
            self.waiting[step.version] = error.message
            progress(error.message)
        except HpcstackError as error:
            self.fail(step, error)
        else:
            self.deeds.append(Deed(step, said))

    def fail(self, step: SyncStep, error: HpcstackError) -> None:
        """Keep that STEP has failed: its version goes no further in this run."""
        first = error.message.splitlines()[0]
        self.means.bench.progress(f"{name_step(step)} FAILED: {first}")
        self.deeds.append(make_failure(step, error))
        if step.version:
            self.stopped.add(step.version)

    def list_stacks_over(self) -> list[str]:
        """Return the stacks of versions that are neither declared nor can be loaded any more."""
        known = self.known.versions.get(self.name, {})
        chosen = choose_versions(self.declared, known)
        if self.declared.hold or not chosen or self.known.list_unreadable(self.name):
            return []
        states: dict[str, set[str]] = {}
        for site in self.means.site.every_architecture():
            for entry in open_tree(site).ledger(self.name).entries:
                states.setdefault(entry.version, set()).add(entry.state)
        # What was never published may be somebody's work, unless the declaration leaves it out.
        states |= {one: set() for one in known if one not in states and self.leaves_out(one)}
        over = {
            version
            for version, found in states.items()
            if found <= {"retired", "removed", "gone"} and version not in chosen
        }
        return [f"{self.name}-{version}" for version in sorted(over)]

    def leaves_out(self, version: str) -> bool:
        """Return whether the declaration names VERSION as one that is not published."""
        return matches_any(version, self.declared.without)

    def finish(self) -> NameResult:
        return NameResult(self.name, self.file, self.plan(), self.deeds, self.waiting)


def _make_mark(step: SyncStep) -> tuple[str, ...]:
    """Return what makes two steps the same one, whatever their reasons."""
    return step.verb, step.subject, step.partition, step.image


def _list_over(runs: Sequence[_NameRun]) -> frozenset[str]:
    """Return the stacks of all RUNS of which no image is needed any more."""
    try:
        return frozenset(stack for run in runs for stack in run.list_stacks_over())
    except HpcstackError:  # a ledger that cannot be read: nothing counts as over
        return frozenset()


def _build_all(runs: Sequence[_NameRun], folder: DeclaredFolder, means: Means) -> None:
    """Build as jobs what RUNS wait for, all at once."""
    of_step = {step: run for run in runs for step in run.list_builds()}
    if not of_step:
        return
    for step, came in build_as_jobs(list(of_step), folder.declaration.build, means).items():
        run = of_step[step]
        if isinstance(came, HpcstackError):
            run.fail(step, came)
        else:
            run.deeds.append(Deed(step, came))
            if step in run.list_builds():
                run.fail(step, AnswerIsNo("the job built another image than its lock means here"))


def _foretell_pruning(prune: Prune, over: frozenset[str], means: Means, result: SyncResult) -> None:
    """Let RESULT say what would be pruned now, a line for each kind."""
    try:
        found = gc.list_items(means.site, means.bench.runner, prune.days, over=over)
    except HpcstackError as error:
        result.would_prune = [f"prune: {error.message.splitlines()[0]}"]
        return
    going = [item for item in found if not item.keep]
    for kind in sorted({item.kind for item in going}):
        of_kind = [item for item in going if item.kind == kind]
        size = sum(item.size for item in of_kind) / 1e9
        result.would_prune.append(f"prune {format_count(len(of_kind), kind)}, {size:.2f} GB")


def _prune(prune: Prune, over: frozenset[str], means: Means, result: SyncResult) -> None:
    """Remove what nobody needs, as `hpcstack gc` does; RESULT gets what went.

    OVER are stacks of which no image is needed any more.
    """
    try:
        found = gc.list_items(means.site, means.bench.runner, prune.days, over=over)
        going = [item for item in found if not item.keep]
        remove_items(going, means.publisher)
    except HpcstackError as error:
        result.prune_failure = make_failure(
            SyncStep("prune", str(result.folder), "declared"), error
        )
    else:
        result.pruned = [
            f"prune {item.kind} {item.what or item.path.name[:12]}: {item.why}" for item in going
        ]
