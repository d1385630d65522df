"""`hpcstack rollback`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_release_verbs.py.
"""

from __future__ import annotations

import click

from hpcstack.cli.published import (
    add_changing_options,
    make_change,
    published_argument,
    tell_changes,
    with_version,
)
from hpcstack.cli.session import Session, json_option


@click.command("rollback")
@published_argument
@add_changing_options
@json_option
@click.pass_obj
def command(
    session: Session, name: str, reason: str, force: bool, dry_run: bool, as_json: bool
) -> None:
    """Return a version to an earlier release.

    That is the one that is named, else the newest earlier one, of production if there is one.
    Running jobs keep what they have loaded. `hpcstack undo` takes a rollback back.
    """
    from hpcstack.releases.changes import roll_back_version

    ledger, version, release = with_version(session, "rollback", name)
    after, changes = make_change(
        session,
        ledger.name,
        "rollback",
        lambda now, event: roll_back_version(now, version, release, event),
        reason=reason,
        force=force,
        dry_run=dry_run,
    )
    document = {
        "alias": f"{ledger.name}/{version}",
        "release": f"{ledger.name}/{after.aliases[version]}",
        "changed": after.events[-1].alias,
        "default": f"{ledger.name}/{after.default}",
    }
    tell_changes(document, changes, dry_run=dry_run, as_json=as_json)
