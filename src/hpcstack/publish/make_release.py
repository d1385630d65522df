"""From a request to a release: which image and report it means, what speaks against it, and what it
would change.

Tested in tests/unit/publish/test_provenance.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.errors import AnswerIsNo, InputError
from hpcstack.core.namespaces import is_machines_namespace
from hpcstack.core.people import name_caller
from hpcstack.launch.preflight import explain_missing_command
from hpcstack.lock.file import LockFile
from hpcstack.naming.names import find_image_to_publish
from hpcstack.publish import reports
from hpcstack.publish.attachments import collect_attachments
from hpcstack.publish.provenance import find_commit
from hpcstack.publish.status import foretell_changes
from hpcstack.releases.published import find_version, require_version
from hpcstack.releases.records import read_attachments, read_record, read_release
from hpcstack.render.image import KERNEL_NAMES
from hpcstack.store import signing

if TYPE_CHECKING:
    from hpcstack.publish.publishable import Published
    from hpcstack.publish.publisher import Publisher
    from hpcstack.recipe.catalog import Recipe
    from hpcstack.recipe.model import Stack
    from hpcstack.releases.ledger import Entry, Ledger
    from hpcstack.report import Report
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact


@dataclass(frozen=True)
class ReleaseRequest:
    """What `publish` and `promote` were asked for on the command line."""

    channel: str = "testing"
    reports: tuple[Path, ...] = ()  # files; empty: the user's own and the group's of this image
    override: str = ""  # why to publish although the gate is shut
    reason: str = ""
    key: str = ""  # the beginning of the image's key; empty: the newest image
    keep_default: bool = False


@dataclass(frozen=True)
class Candidate:
    """What would be released: a stack's image, its evidence, and where it comes from.

    It comes from a RECIPE, or from an EARLIER release that is to be promoted.
    """

    stack: Stack
    artifact: Artifact
    report: Report | None  # the one that counts
    override: str = ""
    recipe: Recipe | None = None
    earlier: Entry | None = None
    pinned: str | None = None  # the version that stays the default


def find_candidate_of_recipe(
    recipe: Recipe, asked: ReleaseRequest, publisher: Publisher
) -> Candidate:
    """Return the image of RECIPE that is asked for (by default the one built last), as a candidate.

    AnswerIsNo where it is for production and no report opens the gate. InputError where the request
    makes no sense.
    """
    stack, site = recipe.stack, publisher.site
    artifact = find_image_to_publish(
        stack.full_name, asked.key, publisher.store, site.tree_platform
    )
    _check_platform(artifact, site)
    given = _reports_of(stack, artifact, asked, publisher)

    if asked.channel == "production":
        if site.modules.approve == "other":
            raise AnswerIsNo(
                "nobody publishes into production alone here",
                f"hpcstack publish {stack.full_name}; then somebody else: hpcstack promote "
                f"{stack.name}/{stack.release_version}",
                page="promote-a-release",
            )
        named = bool(asked.reports)
        report, override = reports.require_proof(
            stack, artifact, site, given, asked.override, named=named
        )
        return Candidate(stack, artifact, report, override, recipe)

    if asked.override:
        raise InputError(
            "testing has no gate to pass",
            "--override goes with --channel production, or with promote",
            page="promote-a-release",
        )
    found = next((one for one in given if one.image_sha256 == artifact.sha256), None)
    if asked.reports and not found:
        raise InputError(
            "--report: none of them is of this image",
            f"hpcstack test {artifact.key[:12]} -N 2",
            page="promote-a-release",
        )
    return Candidate(stack, artifact, found, "", recipe)


def _check_platform(artifact: Artifact, site: Site) -> None:
    """Raise InputError where the image is for another architecture than the module tree."""
    if site.tree_platform in ("", artifact.platform):
        return
    theirs = KERNEL_NAMES[artifact.platform]
    raise InputError(
        f"the image of {artifact.stack} is for {theirs}, and {site.module_tree} is not",
        f"hpcstack --arch {theirs} publish {artifact.stack}, or hpcstack build {artifact.stack} "
        f"--platform {site.tree_platform}",
        page="two-architectures",
    )


def _reports_of(
    stack: Stack, artifact: Artifact, asked: ReleaseRequest, publisher: Publisher
) -> list[Report]:
    """Return the reports that were named; without any, the user's own and the group's."""
    named = [reports.read_report(path) for path in asked.reports]
    return named or reports.find_reports(stack.full_name, artifact.sha256, publisher.store)


def find_candidate_of_release(name: str, asked: ReleaseRequest, publisher: Publisher) -> Candidate:
    """Return the release that NAME means, as a candidate for production.

    NAME is a release, or a version whose newest testing release is meant.
    """
    tree, site = publisher.tree, publisher.site
    ledger, version, release = find_version(name, tree)
    if name == ledger.name and len({one.version for one in ledger.entries}) > 1:
        require_version("promote", name, tree)

    if release:
        entry = ledger.entry(release)
        if entry.state != "live":
            raise _refuse_promotion(ledger, entry)
    else:
        entry = _newest_in_testing(ledger, version)
        if site.modules.approve == "other":
            full = f"{ledger.name}/{entry.release}"
            raise InputError(
                f"say which release you approve: the newest in testing is {full}",
                f"hpcstack promote {full}",
                page="promote-a-release",
            )

    _require_other(ledger, entry, site)
    stack, artifact = read_release(publisher.store, ledger.name, entry.release)
    given = _reports_of(stack, artifact, asked, publisher)
    report, override = reports.require_proof(
        stack, artifact, site, given, asked.override, named=bool(asked.reports)
    )
    pinned = ledger.default.rpartition("-r")[0] if asked.keep_default else None
    return Candidate(stack, artifact, report, override, None, entry, pinned)


def _require_other(ledger: Ledger, entry: Entry, site: Site) -> None:
    """Raise AnswerIsNo where ENTRY must be promoted by somebody other than its publisher."""
    if site.modules.approve != "other":
        return
    if not is_machines_namespace():
        raise AnswerIsNo(
            "who you are cannot be told in a user namespace, and a second person must promote",
            "promote it outside of the container",
            page="promote-a-release",
        )
    caller = name_caller()
    if entry.by == caller:
        raise AnswerIsNo(
            f"{ledger.name}/{entry.release} was published by {caller}: somebody else promotes it",
            f"let another publisher type: hpcstack promote {ledger.name}/{entry.release}",
            page="promote-a-release",
        )


def _refuse_promotion(ledger: Ledger, entry: Entry) -> InputError:
    """Return the error for a release that is not live, with the command that brings it back."""
    back = {"retired": "retire --cancel", "removed": "undo"}.get(entry.state, "rollback")
    subject = entry.version if entry.state == "retired" else entry.release
    return InputError(
        f"{ledger.name}/{entry.release} is {entry.state}",
        f"hpcstack history {ledger.name} says why; hpcstack {back} {ledger.name}/{subject} "
        f"brings it back",
        page="roll-back",
    )


def is_waiting(ledger: Ledger, version: str) -> bool:
    """Return whether VERSION's newest live testing release waits for promotion.

    An image that has been in production does not wait: it is there, or was withdrawn for a reason.
    """
    releases = ledger.of(version)
    testing = [one for one in releases if one.state == "live" and one.channel == "testing"]
    promoted = [one.sha256 for one in releases if one.channel == "production"]
    return bool(testing) and testing[-1].sha256 not in promoted


def _newest_in_testing(ledger: Ledger, version: str) -> Entry:
    """Return the newest live testing release of VERSION. InputError where there is none."""
    waiting = [
        one for one in ledger.of(version) if one.state == "live" and one.channel == "testing"
    ]
    if waiting:
        return waiting[-1]

    full = f"{ledger.name}/{version}"
    if any(one.state == "retired" for one in ledger.of(version)):
        raise InputError(
            f"{full} is retired", f"hpcstack retire {full} --cancel", page="retire-a-release"
        )
    raise InputError(
        f"there is no testing release of {full} to promote",
        f"hpcstack publish {ledger.name}-{version}",
        page="promote-a-release",
    )


def foretell_release(
    candidate: Candidate, asked: ReleaseRequest, publisher: Publisher
) -> tuple[list[str], str]:
    """Return what releasing CANDIDATE would change: a list of lines, and all files as a diff."""
    one = candidate
    return foretell_changes(
        publisher, one.stack, one.artifact, asked.channel, one.report, one.override, one.pinned
    )


def release_candidate(
    candidate: Candidate, asked: ReleaseRequest, publisher: Publisher
) -> Published:
    """Check CANDIDATE, sign it where the site signs, and release it."""
    stack, artifact = candidate.stack, candidate.artifact
    if candidate.recipe:
        check_withdrawn(stack, artifact, asked, publisher)
    check_commands(stack, artifact)
    if artifact.adopted:
        publisher.say(f"ADOPTED, not built by hpcstack: {artifact.adopted}")
    sign_and_check(artifact, publisher)

    if candidate.recipe:
        extra = collect_attachments(candidate.recipe, artifact, publisher.site)
        commit = find_commit(candidate.recipe.path, publisher.runner)
        _note_stale_lock(candidate.recipe, publisher)
    else:
        # A promoted release keeps what its testing release recorded: the recipe may have moved on.
        earlier = candidate.earlier.release if candidate.earlier else ""
        extra = read_attachments(publisher.store, stack.name, earlier)
        record = read_record(publisher.store, stack.name, earlier)
        commit = record.recipe_commit if record else ""

    return publisher.publish(
        stack,
        artifact,
        asked.channel,
        candidate.report,
        extra,
        override=candidate.override,
        pinned=candidate.pinned,
        # An override that no gate asked for still belongs in the history.
        reason=asked.reason or asked.override,
        recipe_commit=commit,
    )


def _note_stale_lock(recipe: Recipe, publisher: Publisher) -> None:
    """Say where the recipe has changed since the image was built."""
    lock = LockFile(recipe, publisher.site)
    if not lock.path.exists():
        return
    reasons = lock.state().reasons
    if reasons:
        what = f"the recipe has changed since the image was built ({reasons[0]})"
        publisher.say(f"NOTE: {what}: hpcstack build {recipe.stack.full_name}")


def check_withdrawn(
    stack: Stack, artifact: Artifact, asked: ReleaseRequest, publisher: Publisher
) -> None:
    """Say where this image was published before and withdrawn.

    AnswerIsNo where it is asked for in production without a reason.
    """
    ledger = publisher.tree.ledger(stack.name)
    same = [one for one in ledger.entries if one.sha256 == artifact.sha256]
    if not same or any(one.state == "live" for one in same) or same[-1].state != "withdrawn":
        return

    what = f"this image was withdrawn: {stack.name}/{same[-1].release}"
    if asked.channel == "production" and not asked.reason and not asked.override:
        raise AnswerIsNo(
            what,
            f"hpcstack history {stack.name} says why; to publish it again all the same: "
            f"--reason WHY",
            page="roll-back",
        )
    publisher.say(f"NOTE: {what}; hpcstack history {stack.name} says why")


def check_commands(stack: Stack, artifact: Artifact) -> None:
    """Raise InputError where the image lacks a command that the recipe's module offers."""
    lacks = [
        one
        for one in stack.module.commands
        if explain_missing_command(artifact, (one,), Path("/"), ())
    ]
    if lacks:
        raise InputError(
            f"the image of {stack.full_name} has no {', '.join(lacks)} on its PATH",
            "`module.commands` in the recipe names what the image has",
        )


def sign_and_check(artifact: Artifact, publisher: Publisher) -> None:
    """Sign the image of ARTIFACT where the site says that publish signs.

    An image that a trusted key has signed is not signed again. AnswerIsNo where the site requires
    signatures and no trusted key has signed the image.
    """
    wanted, runner = publisher.site.signatures, publisher.runner
    why = "it is not signed"
    if wanted.keys:
        why = signing.explain_distrust(artifact, wanted.keys, runner)

    if wanted.sign_with and why:
        if wanted.keys and not signing.is_trusted(wanted.sign_with, wanted.keys, runner):
            raise InputError(
                f"signatures.sign_with, {wanted.sign_with}, belongs to none of signatures.keys",
                "add its public half to signatures.keys in site.yaml",
                page="sign-images",
            )
        what = signing.Statement(
            artifact.sha256, artifact.stack, artifact.lock_sha256, adopted=artifact.adopted
        )
        signature = signing.sign_image(artifact.image, wanted.sign_with, runner, what)
        publisher.say(f"signed: {signature}")

    if wanted.required:
        why = signing.explain_distrust(artifact, wanted.keys, runner)
        if why:
            raise AnswerIsNo(
                f"this site publishes only signed images; {artifact.stack}: {why}",
                f"hpcstack sign {artifact.key[:12]}, with a key of site.yaml's signatures.keys",
                page="sign-images",
            )
