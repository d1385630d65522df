"""`hpcstack gc`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hpcstack.cli.published import make_publisher
from hpcstack.cli.session import Session, answer, format_table, json_option, say

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcstack.publish.gc import Item
    from hpcstack.releases.ledger import Event, Ledger

MOST_LINES = 12  # of one kind; more are summed


@click.command("gc")
@click.option(
    "--older-than", default=14.0, show_default=True, metavar="DAYS", help="Keep what is younger."
)
@click.option("--no-slurm", is_flag=True, help="Do not ask Slurm which images its jobs use.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.option("--all", "every", is_flag=True, help="Also what stays, and why.")
@json_option
@click.pass_obj
def command(
    session: Session, older_than: float, no_slurm: bool, dry_run: bool, every: bool, as_json: bool
) -> None:
    """Remove images, bases and kept steps that nobody needs: not published, not in use, not the
    newest, not young; and releases that were withdrawn, retired or removed longer ago than the site
    keeps them (modules.keep_days).
    """
    from hpcstack.core.errors import InputError
    from hpcstack.publish import gc

    if not 0 <= older_than < 1e6:
        raise InputError(f"--older-than {older_than:g}: a number of days, 0 or more")
    found = gc.list_items(session.site, session.runner, older_than, slurm=not no_slurm)
    going = [item for item in found if not item.keep]
    if not dry_run:
        _purge(session, [item.what for item in going if item.kind == "release"], slurm=not no_slurm)
    for item in () if dry_run else going:
        say(f"removing {item.kind} {item.what or item.path.name}")
        gc.remove_item(item, session.site)
    total = sum(item.size for item in going)
    document = {
        "removed" if not dry_run else "would_remove": [_shown(item) for item in going],
        "kept": [_shown(item) for item in found if item.keep],
        "bytes": total,
    }

    def text() -> str:
        kinds = [item.kind for item in going]
        many = [kind for kind in dict.fromkeys(kinds) if kinds.count(kind) > MOST_LINES]
        rows: list[tuple[str, ...]] = [
            (
                item.kind,
                item.what or item.path.name[:24],
                "" if item.kind == "release" else item.path.name[:12],
                item.engine,
                f"{item.size / 1e6:.0f} MB",
                item.made,
                item.keep or f"GOES: {item.why}",
            )
            for item in found
            if every or (not item.keep and item.kind not in many)
        ]
        rows += (
            []
            if every
            else [_summed(kind, [item for item in going if item.kind == kind]) for kind in many]
        )
        last = f"{'would go' if dry_run else 'removed'}: {len(going)}, {total / 1e9:.2f} GB\n"
        last += (
            ""
            if every or len(going) == len(found)
            else f"{len(found) - len(going)} stay: --all says why\n"
        )
        if not rows:
            return last
        return format_table(rows, ("KIND", "WHAT", "KEY", "ENGINE", "SIZE", "MADE", "WHY")) + last

    answer(document, as_json, text)


def _summed(kind: str, items: list[Item]) -> tuple[str, ...]:
    """One line for many things of a KIND, such as the kept steps of every site that this user
    builds for.
    """
    size = sum(item.size for item in items)
    return kind, f"{len(items)} of them", "", "", f"{size / 1e6:.0f} MB", "", "GO: --all names each"


def _purge(session: Session, releases: list[str], *, slurm: bool) -> None:
    """RELEASES (`pytorch/24.11-r1`) are gone in their ledgers, with their modulefiles, before their
    files go.
    """
    from dataclasses import replace

    for site in session.site.every_architecture():
        acts = replace(make_publisher(session, slurm=slurm), site=site)
        for name in sorted({one.partition("/")[0] for one in releases} & set(acts.tree.names())):
            known = {entry.release for entry in acts.tree.ledger(name).entries}
            own = [
                rest
                for head, _, rest in (one.partition("/") for one in releases)
                if head == name and rest in known
            ]
            if own:
                acts.change(name, "gc", _change_for(own), force=True)


def _change_for(releases: list[str]) -> Callable[[Ledger, Event], Ledger]:
    """Return the change of a ledger that records that the files of RELEASES are gone."""
    from hpcstack.releases.changes import purge_releases

    return lambda ledger, event: purge_releases(ledger, releases, event)


def _shown(item: object) -> dict[str, object]:
    from dataclasses import asdict

    return {**asdict(item), "path": str(item.path)}  # type: ignore[call-overload, attr-defined]
