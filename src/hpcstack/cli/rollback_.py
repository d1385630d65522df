"""`hpcstack rollback`."""

from __future__ import annotations

import click

from hpcstack.cli.published import published_argument, publisher, split
from hpcstack.cli.session import Session, answer, json_option


@click.command("rollback")
@published_argument
@click.option("--reason", default="", help="Why; it stands in the history.")
@json_option
@click.pass_obj
def command(session: Session, name: str, reason: str, as_json: bool) -> None:
    """A version means its earlier release again, or the one that is named; running jobs keep what they loaded."""
    from hpcstack.modules import ledger as ledgers
    from hpcstack.modules.words import one_line

    reason = one_line(reason, "--reason")
    ledger, version, release = split(session, name)
    after = publisher(session).change(
        ledger.name, "rollback", lambda now, event: ledgers.rolled_back(now, version, release, event), reason
    )
    event = after.events[-1]
    document = {"alias": f"{ledger.name}/{version}", "release": f"{ledger.name}/{after.aliases[version]}",
                "changed": event.alias, "default": f"{ledger.name}/{after.default}"}  # fmt: skip
    answer(
        document,
        as_json,
        lambda: f"{document['alias']}: {event.alias}\nthe default is {document['default']}",
    )
