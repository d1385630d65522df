"""`hpcstack promote`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from hpcstack.cli.published import DRY_RUN, REASON, make_publisher, published_argument
from hpcstack.cli.publishing import DIFF, OVERRIDE, REPORTS, show_foretold, show_published
from hpcstack.cli.session import Session, answer, json_option

if TYPE_CHECKING:
    from pathlib import Path


@click.command("promote")
@published_argument
@REPORTS
@OVERRIDE
@click.option("--keep-default", is_flag=True, help="The default stays what it is now.")
@REASON
@DRY_RUN
@DIFF
@json_option
@click.pass_obj
def command(
    session: Session,
    name: str,
    reports_: tuple[Path, ...],
    override: str,
    keep_default: bool,
    reason: str,
    dry_run: bool,
    diff: bool,
    as_json: bool,
) -> None:
    """A testing release becomes a production one: a new release whose help carries the report that
    proves it.
    """
    from hpcstack.publish.make_release import (
        ReleaseRequest,
        candidate_of_release,
        foretell_release,
        release_candidate,
    )
    from hpcstack.releases.inputs import parse_one_line

    override, reason = parse_one_line(override, "--override"), parse_one_line(reason, "--reason")
    asked = ReleaseRequest("production", reports_, override, reason, keep_default=keep_default)
    acts = make_publisher(session)
    candidate = candidate_of_release(name, asked, acts)
    if dry_run or diff:
        changes, files = foretell_release(candidate, asked, acts)
        show_foretold(changes, files, diff=diff, as_json=as_json)
        return
    done = release_candidate(candidate, asked, acts)
    answer(asdict(done), as_json, lambda: show_published(done))
