"""What publish and promote share: options, the checks before a release, and how it is shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcstack.cli.session import Session, answer, say

if TYPE_CHECKING:
    from hpcstack.recipe.model import Stack
    from hpcstack.store.artifact import Artifact

OVERRIDE = click.option("--override", default="", metavar="REASON", help="Pass a shut gate; REASON is written down.")
DIFF = click.option("--diff", is_flag=True, help="Like --dry-run, and every file as a diff.")
REPORTS = click.option(
    "--report", "reports_", multiple=True, type=click.Path(path_type=Path, exists=True), metavar="FILE",
    help="A report to show and to judge by; by default your newest of this image.",
)  # fmt: skip


def check_commands(session: Session, stack: Stack, artifact: Artifact) -> None:
    """InputError where the image lacks a command that the recipe's module is to offer."""
    from hpcstack.core.errors import InputError
    from hpcstack.launch.preflight import missing

    lacks = [one for one in stack.module.commands if missing(artifact, (one,), Path("/"), (), session.runner)]
    if lacks:
        raise InputError(f"the image of {stack.full_name} has no {', '.join(lacks)} on its PATH",
                         "`module.commands` in the recipe names what the image has")  # fmt: skip


def sign_and_check(session: Session, artifact: Artifact) -> None:
    """ARTIFACT's image, signed where the site says that publish signs; AnswerIsNo where no trusted key has."""
    from hpcstack.core.errors import AnswerIsNo, InputError
    from hpcstack.store import signing

    wanted = session.site.signatures
    why = signing.trusted(artifact, wanted.keys, session.runner) if wanted.keys else "it is not signed"
    if wanted.sign_with and why:
        if wanted.keys and not signing.is_trusted(wanted.sign_with, wanted.keys, session.runner):
            raise InputError(f"signatures.sign_with, {wanted.sign_with}, belongs to none of signatures.keys",
                             "add its public half to signatures.keys in site.yaml")  # fmt: skip
        what = signing.Statement(artifact.sha256, artifact.stack, artifact.lock_sha256)
        say(f"signed: {signing.sign(artifact.image, wanted.sign_with, session.runner, what)}")
    if wanted.required and (why := signing.trusted(artifact, wanted.keys, session.runner)):
        raise AnswerIsNo(f"this site publishes only signed images; {artifact.stack}: {why}",
                         f"hpcstack sign {artifact.key[:12]}, with a key of site.yaml's signatures.keys")  # fmt: skip


def show_foretold(changes: list[str], files: str, *, diff: bool, as_json: bool) -> None:
    """What publishing would change: a few lines, and all files as a diff where that is asked for."""
    more = files if diff else "" if not changes else "  (--diff shows the files)"
    lines = ["this would change:", *(f"  {one}" for one in changes), more] if changes else ["nothing would change"]
    answer({"changes": changes, "diff": files, "dry_run": True}, as_json, lambda: "\n".join(lines))


def shown(done: object) -> str:
    """What was published, and what a user types."""
    from hpcstack.publish.publishable import Published

    assert isinstance(done, Published)
    was = f"published in {done.channel}: {done.checked}" if done.new else f"was already published in {done.channel}"
    lines = [f"{done.release} {was}"]
    lines += [f"  {done.modulefile}"]
    if done.takes_alias:
        lines.append(f"  {done.alias} loads it" + (", and it is the default" if done.default == done.release else ""))
    elif done.channel == "testing":
        lines.append(f"  {done.alias} stays with its production release: hpcstack promote {done.alias}")
    return "\n".join([*lines, "", f"  module use {done.modulepath}", f"  {done.load}"])
