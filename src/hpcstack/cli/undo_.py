"""`hpcstack undo`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_release_verbs.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.published import (
    NO_SLURM,
    add_changing_options,
    make_change,
    published_argument,
    split_published,
    tell_changes,
)
from hpcstack.cli.session import Session, json_option

if TYPE_CHECKING:
    from hpcstack.releases.ledger import Event, Ledger


@click.command("undo")
@published_argument
@click.option(
    "--event",
    "number",
    default=0,
    type=click.IntRange(min=0),
    metavar="N",
    help="Undo event N, as `history` numbers it, and all that followed.",
)
@click.option(
    "--to",
    "moment",
    default="",
    metavar="TIME",
    help="Return to the state at this time of UTC, as 2026-11-24T03:00.",
)
@add_changing_options
@NO_SLURM
@json_option
@click.pass_obj
def command(
    session: Session,
    /,
    name: str,
    number: int,
    moment: str,
    no_slurm: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Undo the last change to what is published under a name.

    Changes are publish, promote, rollback, default, retire and remove. An undo is itself a change
    that is recorded in the history: a second undo takes back the first. --event and --to go further
    back.
    """
    from hpcstack.core.errors import InputError
    from hpcstack.releases.changes import (
        find_number_after,
        last_change,
        list_changes_since,
        undo_changes,
    )

    if number and moment:
        raise InputError(
            "--event and --to exclude each other", "give one of them", page="roll-back"
        )

    ledger, version, release = split_published(session, name)
    since = (
        find_number_after(ledger, _parse_utc(moment)) if moment else number
    )  # 0: the last change
    last = list_changes_since(ledger, since)[0] if since else last_change(ledger)
    if since and name != ledger.name:
        raise InputError(
            f"--event and --to take a name, not {name}",
            f"hpcstack undo {ledger.name}",
            page="roll-back",
        )

    # A version or a release is named to be sure: it has to be what was changed last.
    changed = last.releases if release else last.versions
    if not since and name != ledger.name and (release or version) not in changed:
        raise InputError(
            f"the last change was not of {name}, but of {last.subject}: {last.verb} by {last.by}, "
            f"{last.at}",
            f"hpcstack undo {ledger.name} takes that back; hpcstack history {ledger.name}",
            page="roll-back",
        )

    def act(now: Ledger, event: Event) -> Ledger:
        # somebody else may have made a change since the ledger was read
        if last_change(now) != last:
            raise InputError(
                f"{now.name} was changed in the meantime",
                f"hpcstack history {now.name}, and undo again",
                page="roll-back",
            )
        return undo_changes(now, event, since)

    after, changes = make_change(session, ledger.name, "undo", act, **asked, slurm=not no_slurm)

    count = len(list_changes_since(ledger, since)) if since else 1
    what = f"{last.verb} of {ledger.name}/{last.subject} by {last.by}, {last.at}"
    others = f", and {count - 1} before it" if count > 1 else ""
    document = {
        "name": ledger.name,
        "count": count,
        "undone": {"verb": last.verb, "release": last.subject, "at": last.at, "by": last.by},
        "default": f"{ledger.name}/{after.default}" if after.default else "",
    }
    tell_changes(
        document,
        changes,
        dry_run=asked["dry_run"],
        as_json=as_json,
        last=f"taken back: {what}{others}",
    )


def _parse_utc(said: str) -> str:
    """Return SAID, a time or a day, in the form that events have. Raise InputError for others.

    A time without a zone is UTC.
    """
    from datetime import datetime, timezone

    from hpcstack.core.errors import InputError

    try:
        moment = datetime.fromisoformat(said.replace("Z", "+00:00"))
    except ValueError:
        raise InputError(
            f"--to {said}: not a time", "e.g. --to 2026-11-24T03:00, of UTC", page="roll-back"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return moment.astimezone(timezone.utc).isoformat(timespec="seconds")
