"""`hpcstack promote`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_release_verbs.py.
"""

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
@click.option("--keep-default", is_flag=True, help="Leave the default version as it is now.")
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
    """Promote a testing release to production, with a report that proves it.

    Production gets a new release of the same image, whose module's help shows the report.
    """
    from hpcstack.publish.make_release import (
        ReleaseRequest,
        find_candidate_of_release,
        foretell_release,
        release_candidate,
    )
    from hpcstack.releases.inputs import parse_one_line

    override = parse_one_line(override, "--override")
    reason = parse_one_line(reason, "--reason")
    request = ReleaseRequest("production", reports_, override, reason, keep_default=keep_default)

    publisher = make_publisher(session)
    candidate = find_candidate_of_release(name, request, publisher)
    if dry_run or diff:
        changes, files = foretell_release(candidate, request, publisher)
        show_foretold(changes, files, diff=diff, as_json=as_json)
        return

    done = release_candidate(candidate, request, publisher)
    answer(asdict(done), as_json, lambda: show_published(done))
