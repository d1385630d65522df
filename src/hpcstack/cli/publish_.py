"""`hpcstack publish`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.published import DRY_RUN, REASON
from hpcstack.cli.session import Session, answer, json_option, say, stack_argument

if TYPE_CHECKING:
    from hpcstack.spec.model import Stack
    from hpcstack.store import Artifact

OVERRIDE = click.option("--override", default="", metavar="REASON", help="Pass a shut gate; REASON is written down.")
DIFF = click.option("--diff", is_flag=True, help="Like --dry-run, and every file as a diff.")
REPORTS = click.option(
    "--report", "reports_", multiple=True, type=click.Path(path_type=Path, exists=True), metavar="FILE",
    help="A report to show and to judge by; by default your newest of this image.",
)  # fmt: skip


@click.command("publish")
@stack_argument
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
    name: str,
    channel: str,
    reports_: tuple[Path, ...],
    override: str,
    reason: str,
    dry_run: bool,
    diff: bool,
    as_json: bool,
) -> None:
    """Make a built image a release with a module, checked by a real load and unload."""
    from hpcstack.errors import InputError
    from hpcstack.launch import image_of
    from hpcstack.modules import proof
    from hpcstack.modules.acts import Publisher
    from hpcstack.modules.extras import extras
    from hpcstack.modules.words import one_line

    recipe = session.recipe(name)
    stack, artifact = recipe.stack, image_of(recipe.stack.full_name, session.store)
    override = one_line(override, "--override")
    given = [proof.read(path) for path in reports_] or proof.reports(stack.full_name, artifact.sha256)
    if channel == "production":
        report, override = proof.proven(stack, artifact, session.site, given, override, named=bool(reports_))
    elif override:
        raise InputError("testing has no gate to pass", "--override goes with --channel production, or with promote")
    else:
        report = next((one for one in given if one.image_sha256 == artifact.sha256), None)
        if reports_ and not report:
            raise InputError("--report: none of them is of this image", f"hpcstack test {stack.full_name} -N 2")
    publisher = Publisher(session.site, session.store, session.runner, say)
    reason = one_line(reason, "--reason")
    if dry_run or diff:
        foretold(publisher, stack, artifact, channel, report, override, None, diff=diff, as_json=as_json)
        return
    check_commands(session, stack, artifact)
    sign_and_check(session, artifact)
    more = extras(recipe, artifact, session.site, session.runner)
    done = publisher.publish(stack, artifact, channel, report, more, override, reason=reason)
    answer(asdict(done), as_json, lambda: shown(done))


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
        raise AnswerIsNo(f"this site publishes what is signed, and of {artifact.stack}: {why}",
                         f"hpcstack sign {artifact.stack}, with a key of site.yaml's signatures.keys")  # fmt: skip


def foretold(
    publisher: Any, stack: Any, artifact: Any, channel: str, report: Any, override: str, pinned: str | None, *,
    diff: bool, as_json: bool,
) -> None:  # fmt: skip
    """What publishing would change: a few lines, and all files as a diff where that is asked for."""
    from hpcstack.modules.shown import planned

    changes, files = planned(publisher, stack, artifact, channel, report, override, pinned)
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
        lines.append(f"  {done.alias} means it" + (", and it is the default" if done.default == done.release else ""))
    elif done.channel == "testing":
        lines.append(f"  {done.alias} stays with its production release: hpcstack promote {done.alias}")
    return "\n".join([*lines, "", f"  module use {done.modulepath}", f"  {done.load}"])
