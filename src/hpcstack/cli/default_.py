"""`hpcstack default`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_release_verbs.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hpcstack.cli.published import (
    add_changing_options,
    make_change,
    published_argument,
    split_published,
    tell_changes,
)
from hpcstack.cli.session import Session, answer, json_option

if TYPE_CHECKING:
    from hpcstack.releases.ledger import Ledger

CHOSEN = (
    ", chosen by hand: newer versions do not take its place; to follow the newest again: "
    "hpcstack default {} --newest"
)


@click.command("default")
@published_argument
@click.option("--newest", is_flag=True, help="Follow the newest production version again.")
@add_changing_options
@json_option
@click.pass_obj
def command(
    session: Session,
    name: str,
    newest: bool,
    reason: str,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Choose the version that `module load NAME` loads.

    With a NAME alone, only show which version that is.
    """
    from hpcstack.core.errors import InputError
    from hpcstack.releases.changes import choose_default

    ledger, version, release = split_published(session, name)
    if release:
        raise InputError(
            f"{release} is a release; a version is the default",
            f"hpcstack default {ledger.name}/{version}",
            page="promote-a-release",
        )

    if name == ledger.name and not newest:
        _show_default(ledger, as_json)
        return

    chosen = "" if newest else version
    after, changes = make_change(
        session,
        ledger.name,
        "default",
        lambda now, event: choose_default(now, chosen, event),
        reason=reason,
        force=force,
        dry_run=dry_run,
    )
    document = {
        "name": ledger.name,
        "default": f"{ledger.name}/{after.default}",
        "pinned": after.pinned,
    }
    tell_changes(
        document,
        changes,
        dry_run=dry_run,
        as_json=as_json,
        last=f"the default is {document['default']}",
    )


def _show_default(ledger: Ledger, as_json: bool) -> None:
    default = f"{ledger.name}/{ledger.default}" if ledger.default else ""
    text = default or f"{ledger.name} has no default"
    if ledger.pinned:
        text += CHOSEN.format(ledger.name)
    document = {"name": ledger.name, "default": default, "pinned": ledger.pinned}
    answer(document, as_json, lambda: text)
