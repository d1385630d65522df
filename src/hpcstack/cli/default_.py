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
    """Choose the version that `module load NAME` means; of a NAME alone, show it."""
    from hpcstack.errors import InputError
    from hpcstack.modules import ledger as ledgers

    ledger, version, release = split(session, name)
    if release:
        raise InputError(
            f"{release} is a release; a version is the default", f"hpcstack default {ledger.name}/{version}"
        )
    chosen = "" if newest else version
    if name == ledger.name and not newest:
        shown = f"{ledger.name}/{ledger.default}" if ledger.default else ""
        answer(
            {"name": name, "default": shown, "pinned": ledger.pinned},
            as_json,
            lambda: shown or f"{name} has no default",
        )
        return
    after = publisher(session).change(ledger.name, "default", lambda now, event: ledgers.defaulted(now, chosen, event))
    document = {"name": ledger.name, "default": f"{ledger.name}/{after.default}", "pinned": after.pinned}
    answer(document, as_json, lambda: f"the default is {document['default']}")
