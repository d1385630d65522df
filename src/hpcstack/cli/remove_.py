"""`hpcstack remove`."""

from __future__ import annotations

from typing import Any

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


@click.command("remove")
@click.argument(
    "name", metavar="[NAME[/VERSION[-rN]]]", default="", shell_complete=complete_published
)
@click.option("--all", "every", is_flag=True, help="All that is published here.")
@add_changing_options
@NO_SLURM
@json_option
@click.pass_obj
def command(
    session: Session, /, name: str, every: bool, no_slurm: bool, as_json: bool, **asked: Any
) -> None:
    """Take a release, a version or all of a name out of the module tree. `hpcstack undo` brings it
    back until `gc` has taken its files, after the site's days (modules.keep_days).
    """
    from hpcstack.core.errors import InputError
    from hpcstack.releases.changes import remove_releases
    from hpcstack.releases.tree import Tree

    if bool(name) == every:
        raise InputError(
            "name what is to go, or say --all",
            "hpcstack remove NAME/VERSION-rN, NAME/VERSION or NAME",
        )
    names = Tree(session.site.module_tree).names() if every else [name]
    told: list[str] = []
    gone: list[str] = []
    for one in names:
        ledger, version, release = split_published(session, one)
        going = [
            entry.release
            for entry in ledger.entries
            if entry.state not in ("removed", "gone")
            and (
                entry.release == release
                if release
                else one == ledger.name or entry.version == version
            )
        ]
        if not going and every:
            continue
        if not going:
            raise InputError(f"{one} is removed already", f"hpcstack history {ledger.name}")

        def act(now: Any, event: Any, going: list[str] = going) -> Any:
            return remove_releases(now, going, event)

        _, changes = make_change(session, ledger.name, "remove", act, **asked, slurm=not no_slurm)
        told += changes
        gone += [f"{ledger.name}/{one}" for one in going]
    days = session.site.modules.keep_days
    tell_changes(
        {"removed": gone},
        told,
        dry_run=asked["dry_run"],
        as_json=as_json,
        last=f"hpcstack undo NAME brings them back; hpcstack gc takes their files after {days} "
        f"days",
    )
