"""`hpcstack undo`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.published import NO_SLURM, change, changing, published_argument, split, tell
from hpcstack.cli.session import Session, json_option

if TYPE_CHECKING:
    from hpcstack.releases.ledger import Event, Ledger


@click.command("undo")
@published_argument
@changing
@NO_SLURM
@json_option
@click.pass_obj
def command(session: Session, /, name: str, no_slurm: bool, as_json: bool, **asked: Any) -> None:
    """Take back the last change of what is published under a name: publish, promote, rollback, default, retire, remove.

    An undo is itself a change, recorded in the history; a second undo brings back what the first took away.
    """
    from hpcstack.core.errors import InputError
    from hpcstack.releases.changes import last_change, undone

    ledger, version, release = split(session, name)
    last = last_change(ledger)
    of = last.release.split(", ") if release else last.version.split(", ")
    if name != ledger.name and (release or version) not in of:
        raise InputError(
            f"not {name} was changed last, but {last.subject}: {last.verb} by {last.by}, {last.at}",
            f"hpcstack undo {ledger.name} takes that back; hpcstack history {ledger.name}",
        )

    def act(now: Ledger, event: Event) -> Ledger:
        if last_change(now) != last:
            raise InputError(f"{now.name} was changed meanwhile", f"hpcstack history {now.name}; undo once more")
        return undone(now, event)

    after, changes = change(
        session, ledger.name, "undo", act, **asked, slurm=not no_slurm
    )  # fmt: skip
    document = {"name": ledger.name,
                "undone": {"verb": last.verb, "release": last.subject, "at": last.at, "by": last.by},
                "default": f"{ledger.name}/{after.default}" if after.default else ""}  # fmt: skip
    tell(document, changes, dry_run=asked["dry_run"], as_json=as_json,
         last=f"taken back: {last.verb} of {ledger.name}/{last.subject} by {last.by}, {last.at}")  # fmt: skip
