"""`hpcstack undo`."""

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
    help="Take back event N, as `history` numbers it, and all that followed.",
)
@click.option(
    "--to", "moment", default="", metavar="TIME", help="As it was at TIME of UTC: 2026-11-24T03:00."
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
    """Take back the last change of what is published under a name: publish, promote, rollback,
    default, retire, remove.

    An undo is itself a change, recorded in the history; a second undo brings back what the first
    took away. To go further back: --event or --to.
    """
    from hpcstack.core.errors import InputError
    from hpcstack.releases.changes import changes_since, last_change, number_after, undo_changes

    if number and moment:
        raise InputError("--event and --to say the same thing", "one of them")
    ledger, version, release = split_published(session, name)
    since = number_after(ledger, _utc(moment)) if moment else number
    last = changes_since(ledger, since)[0] if since else last_change(ledger)
    if since and name != ledger.name:
        raise InputError(
            f"--event and --to are of a name, not of {name}", f"hpcstack undo {ledger.name}"
        )
    of = last.releases if release else last.versions
    if not since and name != ledger.name and (release or version) not in of:
        raise InputError(
            f"not {name} was changed last, but {last.subject}: {last.verb} by {last.by}, {last.at}",
            f"hpcstack undo {ledger.name} takes that back; hpcstack history {ledger.name}",
        )

    def act(now: Ledger, event: Event) -> Ledger:
        if last_change(now) != last:
            raise InputError(
                f"{now.name} was changed meanwhile", f"hpcstack history {now.name}; undo once more"
            )
        return undo_changes(now, event, since)

    after, changes = make_change(session, ledger.name, "undo", act, **asked, slurm=not no_slurm)
    count = len(changes_since(ledger, since)) if since else 1
    what = f"{last.verb} of {ledger.name}/{last.subject} by {last.by}, {last.at}"
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
        last=f"taken back: {what}" + (f", and {count - 1} before it" if count > 1 else ""),
    )


def _utc(said: str) -> str:
    """SAID, a time or a day of UTC, as events have it. InputError for what is none."""
    from datetime import datetime, timezone

    from hpcstack.core.errors import InputError

    try:
        moment = datetime.fromisoformat(said.replace("Z", "+00:00"))
    except ValueError:
        raise InputError(f"--to {said}: not a time", "e.g. --to 2026-11-24T03:00, of UTC") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return moment.astimezone(timezone.utc).isoformat(timespec="seconds")
