"""`hpcstack publish`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.published import DRY_RUN, REASON
from hpcstack.cli.session import Session, answer, chosen, complete, json_option, say

if TYPE_CHECKING:
    from hpcstack.modules.publishable import Published
    from hpcstack.spec.catalog import Recipe
    from hpcstack.spec.model import Stack
    from hpcstack.store import Artifact

OVERRIDE = click.option("--override", default="", metavar="REASON", help="Pass a shut gate; REASON is written down.")
DIFF = click.option("--diff", is_flag=True, help="Like --dry-run, and every file as a diff.")
REPORTS = click.option(
    "--report", "reports_", multiple=True, type=click.Path(path_type=Path, exists=True), metavar="FILE",
    help="A report to show and to judge by; by default your newest of this image.",
)  # fmt: skip


@dataclass(frozen=True)
class Wanted:
    """What `publish` was asked for, beside the stacks."""

    channel: str
    reports: tuple[Path, ...]
    override: str
    reason: str


@click.command("publish")
@click.argument("names", metavar="STACK...", nargs=-1, required=True,
                shell_complete=lambda ctx, _param, start: complete(ctx, start))  # fmt: skip
@click.option(
    "--channel", type=click.Choice(["testing", "production"]), default="testing", show_default=True,
    help="production wants a report that proves it, as promote does.",
)  # fmt: skip
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
    from hpcstack.modules.words import one_line

    wanted = Wanted(channel, reports_, one_line(override, "--override"), one_line(reason, "--reason"))
    stacks = _built(session, names)
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
    from hpcstack.errors import InputError
    from hpcstack.launch import image_of

    out: list[str] = []
    for name in names:
        for stack in chosen(session, [name]):
            if stack != name:
                try:
                    image_of(stack, session.store)
                except InputError:
                    continue
            out += [stack] if stack not in out else []
    if not out:
        raise InputError(f"nothing is built of {', '.join(names)}", f"hpcstack build {' '.join(names)}")
    return out


def _many(session: Session, stacks: list[str], wanted: Wanted, *, foretell: bool, as_json: bool) -> None:
    """One after another; the first failure's exit code, once all were tried."""
    from hpcstack.errors import HpcstackError

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
            rows.append({"stack": name, "said": error.message})
    answer(rows, as_json, lambda: "\n".join(f"{row['stack']}: {row['said']}" for row in rows))
    if failed:
        raise click.exceptions.Exit(failed)


def _asked(session: Session, name: str, wanted: Wanted) -> tuple[Recipe, Artifact, Any, str]:
    """(recipe, image, the report that counts or None, the reason to pass a shut gate) of one stack."""
    from hpcstack.errors import InputError
    from hpcstack.launch import image_of
    from hpcstack.modules import proof

    recipe = session.recipe(name)
    stack, artifact = recipe.stack, image_of(recipe.stack.full_name, session.store)
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


def _publish(session: Session, name: str, wanted: Wanted) -> Published:
    from hpcstack.modules.acts import Publisher
    from hpcstack.modules.extras import extras

    recipe, artifact, report, override = _asked(session, name, wanted)
    check_commands(session, recipe.stack, artifact)
    sign_and_check(session, artifact)
    more = extras(recipe, artifact, session.site, session.runner)
    publisher = Publisher(session.site, session.store, session.runner, say)
    return publisher.publish(
        recipe.stack, artifact, wanted.channel, report, more, override, reason=wanted.reason
    )  # fmt: skip


def _foretold(session: Session, name: str, wanted: Wanted) -> tuple[list[str], str]:
    from hpcstack.modules.acts import Publisher
    from hpcstack.modules.shown import planned

    recipe, artifact, report, override = _asked(session, name, wanted)
    publisher = Publisher(session.site, session.store, session.runner, say)
    return planned(publisher, recipe.stack, artifact, wanted.channel, report, override, None)


def check_commands(session: Session, stack: Stack, artifact: Artifact) -> None:
    """InputError where the image lacks a command that the recipe's module is to offer."""
    from hpcstack.errors import InputError
    from hpcstack.launch.inside import missing

    lacks = [one for one in stack.module.commands if missing(artifact, (one,), Path("/"), (), session.runner)]
    if lacks:
        raise InputError(f"the image of {stack.full_name} has no {', '.join(lacks)} on its PATH",
                         "`module.commands` in the recipe names what the image has")  # fmt: skip


def sign_and_check(session: Session, artifact: Artifact) -> None:
    """ARTIFACT's image, signed where the site says that publish signs; AnswerIsNo where no trusted key has."""
    from hpcstack import signing
    from hpcstack.errors import AnswerIsNo

    wanted = session.site.signatures
    if wanted.sign_with:
        what = signing.Statement(artifact.sha256, artifact.stack, artifact.lock_sha256)
        say(f"signed: {signing.sign(artifact.image, wanted.sign_with, session.runner, what)}")
    if wanted.required and (why := signing.trusted(artifact, wanted.keys, session.runner)):
        raise AnswerIsNo(f"this site publishes only signed images; {artifact.stack}: {why}",
                         f"hpcstack sign {artifact.stack}, with a key of site.yaml's signatures.keys")  # fmt: skip


def show_foretold(changes: list[str], files: str, *, diff: bool, as_json: bool) -> None:
    """What publishing would change: a few lines, and all files as a diff where that is asked for."""
    more = files if diff else "" if not changes else "  (--diff shows the files)"
    lines = ["this would change:", *(f"  {one}" for one in changes), more] if changes else ["nothing would change"]
    answer({"changes": changes, "diff": files, "dry_run": True}, as_json, lambda: "\n".join(lines))


def shown(done: object) -> str:
    """What was published, and what a user types."""
    from hpcstack.modules.publishable import Published

    assert isinstance(done, Published)
    was = f"published in {done.channel}: {done.checked}" if done.new else f"was already published in {done.channel}"
    lines = [f"{done.release} {was}"]
    lines += [f"  {done.modulefile}"]
    if done.takes_alias:
        lines.append(f"  {done.alias} loads it" + (", and it is the default" if done.default == done.release else ""))
    elif done.channel == "testing":
        lines.append(f"  {done.alias} stays with its production release: hpcstack promote {done.alias}")
    return "\n".join([*lines, "", f"  module use {done.modulepath}", f"  {done.load}"])
