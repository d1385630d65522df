"""From what was asked for to a release: which image and report, what speaks against it, and what it
would change.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.errors import AnswerIsNo, InputError
from hpcstack.launch.preflight import explain_missing_command
from hpcstack.lock.file import LockFile
from hpcstack.publish import reports
from hpcstack.publish.attachments import collect_attachments
from hpcstack.publish.provenance import find_commit
from hpcstack.publish.status import foretell_changes
from hpcstack.releases.lookup import find_version, require_version
from hpcstack.releases.records import read_attachments, read_record, read_release
from hpcstack.render.image import KERNEL_NAMES
from hpcstack.store import signing
from hpcstack.store.find import image_with_key

if TYPE_CHECKING:
    from hpcstack.publish.publishable import Published
    from hpcstack.publish.publisher import Publisher
    from hpcstack.recipe.catalog import Recipe
    from hpcstack.recipe.model import Stack
    from hpcstack.releases.ledger import Entry
    from hpcstack.report import Report
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact


@dataclass(frozen=True)
class ReleaseRequest:
    """How a release is asked for: into CHANNEL, judged by REPORTS (files; by default the user's own
    of this image), the image whose key begins with KEY, OVERRIDE the reason to pass a shut gate.
    """

    channel: str = "testing"
    reports: tuple[Path, ...] = ()
    override: str = ""
    reason: str = ""
    key: str = ""
    keep_default: bool = False


@dataclass(frozen=True)
class Candidate:
    """What would be released: a stack's image, the report that counts (None: there is none), and
    where it comes from: a RECIPE, or an EARLIER release of which it is the production one.
    """

    stack: Stack
    artifact: Artifact
    report: Report | None
    override: str = ""
    recipe: Recipe | None = None
    earlier: Entry | None = None
    pinned: str | None = None


def candidate_of_recipe(recipe: Recipe, asked: ReleaseRequest, publisher: Publisher) -> Candidate:
    """The image of RECIPE that was built last, or that is named.

    InputError or AnswerIsNo where it has no proof.
    """
    stack, site = recipe.stack, publisher.site
    artifact = image_with_key(stack.full_name, asked.key, publisher.store, site.tree_platform)
    _check_platform(artifact, site)
    given = _reports_of(stack, artifact, asked, publisher)
    if asked.channel == "production":
        named = bool(asked.reports)
        report, override = reports.require_proof(
            stack, artifact, site, given, asked.override, named=named
        )
        return Candidate(stack, artifact, report, override, recipe)
    if asked.override:
        raise InputError(
            "testing has no gate to pass",
            "--override goes with --channel production, or with promote",
        )
    found = next((one for one in given if one.image_sha256 == artifact.sha256), None)
    if asked.reports and not found:
        raise InputError(
            "--report: none of them is of this image", f"hpcstack test {stack.full_name} -N 2"
        )
    return Candidate(stack, artifact, found, "", recipe)


def _check_platform(artifact: Artifact, site: Site) -> None:
    """InputError where the image is for other processors than the module tree."""
    if site.tree_platform in ("", artifact.platform):
        return
    theirs = KERNEL_NAMES[artifact.platform]
    tip = (
        f"hpcstack --arch {theirs} publish {artifact.stack}, or hpcstack build {artifact.stack} "
        f"--platform "
    )
    raise InputError(
        f"the image of {artifact.stack} is for {theirs}, and {site.module_tree} is not",
        tip + site.tree_platform,
    )


def _reports_of(
    stack: Stack, artifact: Artifact, asked: ReleaseRequest, publisher: Publisher
) -> list[Report]:
    """The reports that were named, else the user's own and the group's."""
    named = [reports.read_report(path) for path in asked.reports]
    return named or reports.find_reports(stack.full_name, artifact.sha256, publisher.store)


def candidate_of_release(name: str, asked: ReleaseRequest, publisher: Publisher) -> Candidate:
    """The testing release that NAME means (its newest), for production."""
    tree, site = publisher.tree, publisher.site
    ledger, version, release = find_version(name, tree)
    if name == ledger.name and len({one.version for one in ledger.entries}) > 1:
        require_version("promote", name, tree)
    waiting = [
        one for one in ledger.of(version) if one.state == "live" and one.channel == "testing"
    ]
    if release:
        waiting = [ledger.entry(release)]
        if (state := waiting[0].state) != "live":
            back = {"retired": "retire --cancel", "removed": "undo"}.get(state, "rollback")
            raise InputError(
                f"{ledger.name}/{release} is {state}",
                f"hpcstack history {ledger.name} says why; hpcstack {back} {ledger.name}/"
                f"{version if state == 'retired' else release} brings it back",
            )
    if not waiting:
        full = f"{ledger.name}/{version}"
        if any(one.state == "retired" for one in ledger.of(version)):
            raise InputError(f"{full} is retired", f"hpcstack retire {full} --cancel")
        raise InputError(
            f"no testing release of {full} waits", f"hpcstack publish {ledger.name}-{version}"
        )
    stack, artifact = read_release(publisher.store, ledger.name, waiting[-1].release)
    given = _reports_of(stack, artifact, asked, publisher)
    report, override = reports.require_proof(
        stack, artifact, site, given, asked.override, named=bool(asked.reports)
    )
    pinned = ledger.default.rpartition("-r")[0] if asked.keep_default else None
    return Candidate(stack, artifact, report, override, None, waiting[-1], pinned)


def foretell_release(
    candidate: Candidate, asked: ReleaseRequest, publisher: Publisher
) -> tuple[list[str], str]:
    """What releasing CANDIDATE would change: a line each, and all files as a diff."""
    one = candidate
    return foretell_changes(
        publisher, one.stack, one.artifact, asked.channel, one.report, one.override, one.pinned
    )


def release_candidate(
    candidate: Candidate, asked: ReleaseRequest, publisher: Publisher
) -> Published:
    """CANDIDATE, checked, signed where the site signs, and released."""
    stack, artifact = candidate.stack, candidate.artifact
    if candidate.recipe:
        check_withdrawn(stack, artifact, asked, publisher)
    check_commands(stack, artifact)
    if artifact.adopted:
        publisher.say(f"ADOPTED, not built by hpcstack: {artifact.adopted}")
    sign_and_check(artifact, publisher)
    if candidate.recipe:
        more = collect_attachments(candidate.recipe, artifact, publisher.site)
        commit = find_commit(candidate.recipe.path, publisher.runner)
        lock = LockFile(candidate.recipe, publisher.site)
        if lock.path.exists() and (reasons := lock.state().reasons):
            what = f"the recipe is no longer what the image was built of ({reasons[0]})"
            publisher.say(f"NOTE: {what}: hpcstack build {stack.full_name}")
    else:
        earlier = candidate.earlier.release if candidate.earlier else ""
        more = read_attachments(publisher.store, stack.name, earlier)
        record = read_record(publisher.store, stack.name, earlier)
        commit = record.recipe_commit if record else ""
    return publisher.publish(
        stack,
        artifact,
        asked.channel,
        candidate.report,
        more,
        candidate.override,
        candidate.pinned,
        asked.reason
        or asked.override,  # an override that no gate asked for is a reason all the same
        commit,
    )


def check_withdrawn(
    stack: Stack, artifact: Artifact, asked: ReleaseRequest, publisher: Publisher
) -> None:
    """A word where this image was published once and withdrawn; AnswerIsNo for production, unless
    there is a reason.
    """
    same = [
        one for one in publisher.tree.ledger(stack.name).entries if one.sha256 == artifact.sha256
    ]
    if not same or any(one.state == "live" for one in same) or same[-1].state != "withdrawn":
        return
    what = f"this image was withdrawn: {stack.name}/{same[-1].release}"
    if asked.channel == "production" and not asked.reason and not asked.override:
        raise AnswerIsNo(
            what,
            (
                f"hpcstack history {stack.name} says why; to publish it again all the same: "
                f"--reason WHY"
            ),
        )
    publisher.say(f"NOTE: {what}; hpcstack history {stack.name} says why")


def check_commands(stack: Stack, artifact: Artifact) -> None:
    """InputError where the image lacks a command that the recipe's module is to offer."""
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
    """ARTIFACT's image, signed where the site says that publish signs; AnswerIsNo where no trusted
    key has.
    """
    wanted, runner = publisher.site.signatures, publisher.runner
    why = (
        signing.why_untrusted(artifact, wanted.keys, runner) if wanted.keys else "it is not signed"
    )
    if wanted.sign_with and why:
        if wanted.keys and not signing.is_trusted(wanted.sign_with, wanted.keys, runner):
            raise InputError(
                f"signatures.sign_with, {wanted.sign_with}, belongs to none of signatures.keys",
                "add its public half to signatures.keys in site.yaml",
            )
        what = signing.Statement(
            artifact.sha256, artifact.stack, artifact.lock_sha256, adopted=artifact.adopted
        )
        publisher.say(
            f"signed: {signing.sign_image(artifact.image, wanted.sign_with, runner, what)}"
        )
    if wanted.required and (why := signing.why_untrusted(artifact, wanted.keys, runner)):
        raise AnswerIsNo(
            f"this site publishes only signed images; {artifact.stack}: {why}",
            f"hpcstack sign {artifact.key[:12]}, with a key of site.yaml's signatures.keys",
        )
