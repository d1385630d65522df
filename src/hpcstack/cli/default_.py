"""`hpcstack default`."""

from __future__ import annotations

import click

from hpcstack.cli.published import published_argument, publisher, split
from hpcstack.cli.session import Session, answer, json_option


@click.command("default")
@published_argument
@click.option("--newest", is_flag=True, help="The newest production version again.")
@json_option
@click.pass_obj
def command(session: Session, name: str, newest: bool, as_json: bool) -> None:
    """Choose the version that `module load NAME` means."""
    from hpcstack.modules import ledger as ledgers

    ledger, version, _ = split(session, name)
    chosen = "" if newest else version
    after = publisher(session).change(ledger.name, "default", lambda now, event: ledgers.defaulted(now, chosen, event))
    document = {"name": ledger.name, "default": f"{ledger.name}/{after.default}", "pinned": after.pinned}
    answer(document, as_json, lambda: f"the default is {document['default']}")
