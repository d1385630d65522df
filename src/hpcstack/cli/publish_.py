"""`hpcstack publish`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.published import DRY_RUN, REASON, make_publisher
from hpcstack.cli.publishing import DIFF, OVERRIDE, REPORTS, show_foretold, show_published
from hpcstack.cli.session import Session, answer, choose_stacks, complete_stacks, json_option

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.publish.make_release import ReleaseRequest
    from hpcstack.publish.publishable import Published


@click.command("publish")
@click.argument(
    "names",
    metavar="STACK...",
    nargs=-1,
    required=True,
    shell_complete=lambda ctx, _param, start: complete_stacks(ctx, start),
)
@click.option(
    "--channel",
    type=click.Choice(["testing", "production"]),
    default="testing",
    show_default=True,
    help="production wants a report that proves it, as promote does.",
)
@click.option(
    "--image",
    "key",
    default="",
    metavar="KEY",
    help="This image of the stack's; by default the newest.",
)
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
    from hpcstack.publish.make_release import ReleaseRequest
    from hpcstack.releases.inputs import parse_one_line

    asked = ReleaseRequest(
        channel,
        reports_,
        parse_one_line(override, "--override"),
        parse_one_line(reason, "--reason"),
        key,
    )
    stacks = _built(session, names)
    if key and len(stacks) > 1:
        raise InputError(
            "--image goes with one stack", f"hpcstack publish {stacks[0]} --image {key}"
        )
    if len(stacks) > 1:
        _many(session, stacks, asked, foretell=dry_run or diff, as_json=as_json)
    elif dry_run or diff:
        changes, files = _foretold(session, stacks[0], asked)
        show_foretold(changes, files, diff=diff, as_json=as_json)
    else:
        done = _publish(session, stacks[0], asked)
        answer(asdict(done), as_json, lambda: show_published(done))


def _built(session: Session, names: tuple[str, ...]) -> list[str]:
    """The stacks of NAMES; of a pattern's those that have an image."""
    from hpcstack.core.errors import InputError

    out: list[str] = []
    for name in names:
        for stack in choose_stacks(session, [name]):
            if stack != name and not session.store.newest(stack):
                continue
            out += [stack] if stack not in out else []
    if not out:
        raise InputError(
            f"nothing is built of {', '.join(names)}", f"hpcstack build {' '.join(names)}"
        )
    return out


def _many(
    session: Session, stacks: list[str], asked: ReleaseRequest, *, foretell: bool, as_json: bool
) -> None:
    """One after another; the first failure's exit code, once all were tried."""
    from hpcstack.core.errors import HpcstackError

    rows: list[dict[str, Any]] = []
    failed = 0
    for name in stacks:
        try:
            if foretell:
                said = "; ".join(_foretold(session, name, asked)[0]) or "nothing would change"
                rows.append({"stack": name, "said": said})
            else:
                done = _publish(session, name, asked)
                rows.append({"stack": name, "said": f"{done.release}: {done.load}", **asdict(done)})
        except HpcstackError as error:
            failed = failed or error.exit_code
            said = error.message + (f" ({error.hint})" if error.hint else "")
            rows.append({"stack": name, "said": said})
    answer(rows, as_json, lambda: "\n".join(f"{row['stack']}: {row['said']}" for row in rows))
    if failed:
        raise click.exceptions.Exit(failed)


def _publish(session: Session, name: str, asked: ReleaseRequest) -> Published:
    from hpcstack.publish.make_release import candidate_of_recipe, release_candidate

    acts = make_publisher(session)
    return release_candidate(candidate_of_recipe(session.recipe(name), asked, acts), asked, acts)


def _foretold(session: Session, name: str, asked: ReleaseRequest) -> tuple[list[str], str]:
    from hpcstack.publish.make_release import candidate_of_recipe, foretell_release

    acts = make_publisher(session)
    return foretell_release(candidate_of_recipe(session.recipe(name), asked, acts), asked, acts)
