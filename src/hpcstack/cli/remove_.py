"""`hpcstack remove`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_release_verbs.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.published import (
    NO_SLURM,
    add_changing_options,
    complete_published,
    make_change,
    split_published,
    tell_changes,
)
from hpcstack.cli.session import Session, json_option

if TYPE_CHECKING:
    from hpcstack.releases.ledger import Event, Ledger


@click.command("remove")
@click.argument(
    "name", metavar="[NAME[/VERSION[-rN]]]", default="", shell_complete=complete_published
)
@click.option("--all", "every", is_flag=True, help="Remove everything that is published here.")
@add_changing_options
@NO_SLURM
@json_option
@click.pass_obj
def command(
    session: Session, /, name: str, every: bool, no_slurm: bool, as_json: bool, **asked: Any
) -> None:
    """Remove a release, a version or a whole name from the module tree.

    `hpcstack undo` brings it back, until `hpcstack gc` has removed its files. That is after the
    site's modules.keep_days.
    """
    from hpcstack.core.errors import InputError
    from hpcstack.releases.changes import remove_releases
    from hpcstack.releases.tree import open_tree

    if bool(name) == every:
        raise InputError(
            "name what is to go, or say --all",
            "hpcstack remove NAME/VERSION-rN, NAME/VERSION or NAME",
            page="retire-a-release",
        )

    names = open_tree(session.site).names() if every else [name]
    all_changes: list[str] = []
    removed: list[str] = []
    for one in names:
        ledger, version, release = split_published(session, one)
        if one == ledger.name:
            version = ""  # all versions, not the default's alone
        going = _choose_releases(ledger, version, release)
        if not going and every:
            continue
        if not going:
            raise InputError(f"{one} is removed already", f"hpcstack history {ledger.name}")

        # GOING is bound by a default: the loop gives the name another value
        def act(now: Ledger, event: Event, going: list[str] = going) -> Ledger:
            return remove_releases(now, going, event)

        _, changes = make_change(session, ledger.name, "remove", act, **asked, slurm=not no_slurm)
        all_changes += changes
        removed += [f"{ledger.name}/{release}" for release in going]

    days = session.site.modules.keep_days
    tell_changes(
        {"removed": removed},
        all_changes,
        dry_run=asked["dry_run"],
        as_json=as_json,
        last=f"hpcstack undo NAME brings them back; hpcstack gc removes their files after {days} "
        f"days",
    )


def _choose_releases(ledger: Ledger, version: str, release: str) -> list[str]:
    """Return the releases of LEDGER that are not removed yet: RELEASE, or VERSION's, or all."""
    there = [entry for entry in ledger.entries if entry.state not in ("removed", "gone")]
    if release:
        there = [entry for entry in there if entry.release == release]
    elif version:
        there = [entry for entry in there if entry.version == version]
    return [entry.release for entry in there]
