"""`hpcstack default`."""

from __future__ import annotations

import click

from hpcstack.cli.published import (
    add_changing_options,
    make_change,
    published_argument,
    split_published,
    tell_changes,
)
from hpcstack.cli.session import Session, answer, json_option

CHOSEN = (
    ", chosen: newer versions do not take its place; to follow the newest again: hpcstack default "
    "{} --newest"
)


@click.command("default")
@published_argument
@click.option("--newest", is_flag=True, help="The newest production version again.")
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
    """Choose the version that `module load NAME` means; of a NAME alone, show it."""
    from hpcstack.core.errors import InputError
    from hpcstack.releases.changes import choose_default

    ledger, version, release = split_published(session, name)
    if release:
        raise InputError(
            f"{release} is a release; a version is the default",
            f"hpcstack default {ledger.name}/{version}",
        )
    chosen = "" if newest else version
    if name == ledger.name and not newest:
        shown = f"{ledger.name}/{ledger.default}" if ledger.default else ""
        answer(
            {"name": name, "default": shown, "pinned": ledger.pinned},
            as_json,
            lambda: (
                (shown or f"{name} has no default")
                + (CHOSEN.format(ledger.name) if ledger.pinned else "")
            ),
        )
        return
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
