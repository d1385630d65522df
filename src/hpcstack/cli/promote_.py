"""`hpcstack promote`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_release_verbs.py.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.published import DRY_RUN, REASON, make_publisher, published_arguments
from hpcstack.cli.publishing import DIFF, OVERRIDE, REPORTS, show_foretold, show_published
from hpcstack.cli.session import Session, answer, is_pattern, json_option
from hpcstack.cli.several import answer_each, choose_published_versions

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.publish.make_release import ReleaseRequest
    from hpcstack.publish.publisher import Publisher


@click.command("promote")
@published_arguments
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
    names: tuple[str, ...],
    reports_: tuple[Path, ...],
    override: str,
    keep_default: bool,
    reason: str,
    dry_run: bool,
    diff: bool,
    as_json: bool,
) -> None:
    """Promote a testing release to production, with a report that proves it.

    Production gets a new release of the same image, whose module's help shows the report. Several
    are promoted one after another. Of a pattern, such as 'pytorch/26.*', the versions are promoted
    that have a testing release which waits for it.
    """
    from hpcstack.publish.make_release import (
        ReleaseRequest,
        find_candidate_of_release,
        foretell_release,
        is_waiting,
        release_candidate,
    )
    from hpcstack.releases.inputs import parse_one_line

    override = parse_one_line(override, "--override")
    reason = parse_one_line(reason, "--reason")
    request = ReleaseRequest("production", reports_, override, reason, keep_default=keep_default)

    publisher = make_publisher(session)
    chosen = choose_published_versions(session, names, is_waiting, "waits for promotion")
    if len(chosen) > 1 or any(map(is_pattern, names)):
        _promote_each(chosen, request, publisher, foretell=dry_run or diff, as_json=as_json)
        return

    candidate = find_candidate_of_release(chosen[0], request, publisher)
    if dry_run or diff:
        changes, files = foretell_release(candidate, request, publisher)
        show_foretold(changes, files, diff=diff, as_json=as_json)
        return

    done = release_candidate(candidate, request, publisher)
    answer(asdict(done), as_json, lambda: show_published(done))


def _promote_each(
    names: list[str],
    request: ReleaseRequest,
    publisher: Publisher,
    *,
    foretell: bool,
    as_json: bool,
) -> None:
    """Promote, or with FORETELL only say what that would change, one version after another."""
    from hpcstack.publish.make_release import (
        find_candidate_of_release,
        foretell_release,
        release_candidate,
    )

    def promote(name: str) -> dict[str, Any]:
        candidate = find_candidate_of_release(name, request, publisher)
        if foretell:
            changes, _ = foretell_release(candidate, request, publisher)
            return {"said": "; ".join(changes) or "nothing would change"}
        done = release_candidate(candidate, request, publisher)
        return {"said": f"{done.release}: {done.load}", **asdict(done)}

    answer_each("version", names, promote, as_json=as_json)
