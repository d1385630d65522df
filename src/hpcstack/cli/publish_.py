"""`hpcstack publish`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_release_verbs.py.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.published import DRY_RUN, REASON, make_publisher
from hpcstack.cli.publishing import DIFF, OVERRIDE, REPORTS, show_foretold, show_published
from hpcstack.cli.session import Session, answer, complete_stacks, is_pattern, json_option
from hpcstack.cli.several import answer_each, choose_built_stacks

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
    help="Publish into this channel. production needs a report that proves it, as promote does.",
)
@click.option(
    "--image",
    "key",
    default="",
    metavar="KEY",
    show_default="the newest",
    help="Publish this image of the stack.",
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
    """Publish a built image as a release with a module.

    The module is loaded and unloaded for a check before users can see it. Several stacks are
    published one after another. Of a pattern, such as 'mine-*', those that are built are published.
    """
    from hpcstack.core.errors import InputError
    from hpcstack.publish.make_release import ReleaseRequest
    from hpcstack.releases.inputs import parse_one_line

    override = parse_one_line(override, "--override")
    reason = parse_one_line(reason, "--reason")
    request = ReleaseRequest(channel, reports_, override, reason, key)

    stacks = choose_built_stacks(session, names)
    if key and len(stacks) > 1:
        raise InputError(
            "--image goes with one stack", f"hpcstack publish {stacks[0]} --image {key}"
        )

    if len(stacks) > 1 or any(map(is_pattern, names)):
        _publish_each(session, stacks, request, foretell=dry_run or diff, as_json=as_json)
    elif dry_run or diff:
        changes, files = _foretell(session, stacks[0], request)
        show_foretold(changes, files, diff=diff, as_json=as_json)
    else:
        done = _publish_one(session, stacks[0], request)
        answer(asdict(done), as_json, lambda: show_published(done))


def _publish_each(
    session: Session, stacks: list[str], request: ReleaseRequest, *, foretell: bool, as_json: bool
) -> None:
    """Publish, or with FORETELL only say what that would change, one stack after another."""

    def publish(name: str) -> dict[str, Any]:
        if foretell:
            changes, _ = _foretell(session, name, request)
            return {"said": "; ".join(changes) or "nothing would change"}
        done = _publish_one(session, name, request)
        return {"said": f"{done.release}: {done.load}", **asdict(done)}

    answer_each("stack", stacks, publish, as_json=as_json)


def _publish_one(session: Session, name: str, request: ReleaseRequest) -> Published:
    from hpcstack.publish.make_release import find_candidate_of_recipe, release_candidate

    publisher = make_publisher(session)
    candidate = find_candidate_of_recipe(session.recipe(name), request, publisher)
    return release_candidate(candidate, request, publisher)


def _foretell(session: Session, name: str, request: ReleaseRequest) -> tuple[list[str], str]:
    """Return what publishing NAME would change, a line each, and all its files as one diff."""
    from hpcstack.publish.make_release import find_candidate_of_recipe, foretell_release

    publisher = make_publisher(session)
    candidate = find_candidate_of_recipe(session.recipe(name), request, publisher)
    return foretell_release(candidate, request, publisher)
