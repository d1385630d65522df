"""`hpcstack publish`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.published import DRY_RUN, REASON
from hpcstack.cli.publishing import DIFF, OVERRIDE, REPORTS, check_commands, show_foretold, shown, sign_and_check
from hpcstack.cli.session import Session, answer, chosen, complete, json_option, say

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.publish.publishable import Published
    from hpcstack.recipe.catalog import Recipe
    from hpcstack.recipe.model import Stack
    from hpcstack.store.artifact import Artifact


@dataclass(frozen=True)
class PublishOptions:
    """What `publish` was asked for, beside the stacks."""

    channel: str
    reports: tuple[Path, ...]
    override: str
    reason: str
    key: str = ""


@click.command("publish")
@click.argument("names", metavar="STACK...", nargs=-1, required=True,
                shell_complete=lambda ctx, _param, start: complete(ctx, start))  # fmt: skip
@click.option(
    "--channel", type=click.Choice(["testing", "production"]), default="testing", show_default=True,
    help="production wants a report that proves it, as promote does.",
)  # fmt: skip
@click.option("--image", "key", default="", metavar="KEY", help="This image of the stack's; by default the newest.")
@REPORTS
@OVERRIDE
@REASON
@DRY_RUN
@DIFF
@json_option
@click.pass_obj
def command(
    session: Session,
    names: tuple[str, ...],
    channel: str,
    key: str,
    reports_: tuple[Path, ...],
    override: str,
    reason: str,
    dry_run: bool,
    diff: bool,
    as_json: bool,
) -> None:
    """Make a built image a release with a module, checked by a real load and unload.

    Several stacks, or 'mine-*' (those that are built), come in turn.
    """
    from hpcstack.core.errors import InputError
    from hpcstack.releases.inputs import one_line

    wanted = PublishOptions(channel, reports_, one_line(override, "--override"), one_line(reason, "--reason"), key)
    stacks = _built(session, names)
    if key and len(stacks) > 1:
        raise InputError("--image goes with one stack", f"hpcstack publish {stacks[0]} --image {key}")
    if len(stacks) > 1:
        _many(session, stacks, wanted, foretell=dry_run or diff, as_json=as_json)
    elif dry_run or diff:
        changes, files = _foretold(session, stacks[0], wanted)
        show_foretold(changes, files, diff=diff, as_json=as_json)
    else:
        done = _publish(session, stacks[0], wanted)
        answer(asdict(done), as_json, lambda: shown(done))


def _built(session: Session, names: tuple[str, ...]) -> list[str]:
    """The stacks of NAMES; of a pattern's those that have an image."""
    from hpcstack.core.errors import InputError
    from hpcstack.store.find import newest_image

    out: list[str] = []
    for name in names:
        for stack in chosen(session, [name]):
            if stack != name:
                try:
                    newest_image(stack, session.store)
                except InputError:
                    continue
            out += [stack] if stack not in out else []
    if not out:
        raise InputError(f"nothing is built of {', '.join(names)}", f"hpcstack build {' '.join(names)}")
    return out


def _many(session: Session, stacks: list[str], wanted: PublishOptions, *, foretell: bool, as_json: bool) -> None:
    """One after another; the first failure's exit code, once all were tried."""
    from hpcstack.core.errors import HpcstackError

    rows: list[dict[str, Any]] = []
    failed = 0
    for name in stacks:
        try:
            if foretell:
                said = "; ".join(_foretold(session, name, wanted)[0]) or "nothing would change"
                rows.append({"stack": name, "said": said})
            else:
                done = _publish(session, name, wanted)
                rows.append({"stack": name, "said": f"{done.release}: {done.load}", **asdict(done)})
        except HpcstackError as error:
            failed = failed or error.exit_code
            said = error.message + (f" ({error.hint})" if error.hint else "")
            rows.append({"stack": name, "said": said})
    answer(rows, as_json, lambda: "\n".join(f"{row['stack']}: {row['said']}" for row in rows))
    if failed:
        raise click.exceptions.Exit(failed)


def _asked(session: Session, name: str, wanted: PublishOptions) -> tuple[Recipe, Artifact, Any, str]:
    """(recipe, image, the report that counts or None, the reason to pass a shut gate) of one stack."""
    from hpcstack.core.errors import InputError
    from hpcstack.publish import reports as proof

    recipe = session.recipe(name)
    stack, artifact = recipe.stack, _image(session, recipe.stack.full_name, wanted.key)
    given = [proof.read(path) for path in wanted.reports] or proof.reports(stack.full_name, artifact.sha256)
    if wanted.channel == "production":
        named = bool(wanted.reports)
        return recipe, artifact, *proof.proven(stack, artifact, session.site, given, wanted.override, named=named)
    if wanted.override:
        raise InputError("testing has no gate to pass", "--override goes with --channel production, or with promote")
    report = next((one for one in given if one.image_sha256 == artifact.sha256), None)
    if wanted.reports and not report:
        raise InputError("--report: none of them is of this image", f"hpcstack test {stack.full_name} -N 2")
    return recipe, artifact, report, ""


def _image(session: Session, stack: str, key: str) -> Artifact:
    """The newest image of STACK, or the one whose key begins with KEY."""
    from hpcstack.core.errors import InputError
    from hpcstack.store.find import newest_image

    if not key:
        return newest_image(stack, session.store)
    found = [one for one in session.store.images() if one.key.startswith(key) and one.stack == stack]
    if len(found) != 1:
        raise InputError(f"--image {key}: {len(found)} images of {stack} begin so", "hpcstack images")
    return found[0]


def check_withdrawn(session: Session, stack: Stack, artifact: Artifact, wanted: PublishOptions) -> None:
    """A word where this image was published once and withdrawn; AnswerIsNo for production, unless there is a reason."""
    from hpcstack.core.errors import AnswerIsNo
    from hpcstack.releases.tree import Tree

    same = [one for one in Tree(session.site.module_root).ledger(stack.name).entries if one.sha256 == artifact.sha256]
    if not same or any(one.state == "live" for one in same) or same[-1].state != "withdrawn":
        return
    what = f"this image was withdrawn: {stack.name}/{same[-1].release}"
    if wanted.channel == "production" and not wanted.reason and not wanted.override:
        raise AnswerIsNo(
            what, f"hpcstack history {stack.name} says why; to publish it again all the same: --reason WHY"
        )
    say(f"NOTE: {what}; hpcstack history {stack.name} says why")


def _publish(session: Session, name: str, wanted: PublishOptions) -> Published:
    from hpcstack.lock.file import LockFile
    from hpcstack.publish.attachments import extras
    from hpcstack.publish.publisher import Publisher

    recipe, artifact, report, override = _asked(session, name, wanted)
    check_withdrawn(session, recipe.stack, artifact, wanted)
    check_commands(session, recipe.stack, artifact)
    sign_and_check(session, artifact)
    more = extras(recipe, artifact, session.site, session.runner)
    publisher = Publisher(session.site, session.store, session.runner, say)
    lock = LockFile(recipe, session.site)
    if lock.path.exists() and (reasons := lock.state().reasons):
        say(f"NOTE: the recipe is no longer what the image was built of ({reasons[0]}): hpcstack build {name}")
    return publisher.publish(
        recipe.stack, artifact, wanted.channel, report, more, override, reason=wanted.reason
    )  # fmt: skip


def _foretold(session: Session, name: str, wanted: PublishOptions) -> tuple[list[str], str]:
    from hpcstack.publish.publisher import Publisher
    from hpcstack.publish.status import planned

    recipe, artifact, report, override = _asked(session, name, wanted)
    publisher = Publisher(session.site, session.store, session.runner, say)
    return planned(publisher, recipe.stack, artifact, wanted.channel, report, override, None)
