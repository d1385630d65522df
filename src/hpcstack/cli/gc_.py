"""`hpcstack gc`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_images.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hpcstack.cli.published import make_publisher
from hpcstack.cli.session import Session, answer, format_table, json_option

if TYPE_CHECKING:
    from hpcstack.publish.gc import Item

MOST_LINES = 12  # of one kind; more are shown as one line with their sum


@click.command("gc")
@click.option(
    "--older-than",
    default=14.0,
    show_default=True,
    metavar="DAYS",
    help="Keep images and caches that are younger than this.",
)
@click.option("--no-slurm", is_flag=True, help="Do not ask Slurm which images its jobs use.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--all", "every", is_flag=True, help="Also list what is kept, and why.")
@json_option
@click.pass_obj
def command(
    session: Session, older_than: float, no_slurm: bool, dry_run: bool, every: bool, as_json: bool
) -> None:
    """Remove images, caches and old releases that nobody needs.

    Images, bases and cached build steps are kept while they are published, in use, the newest of
    their stack, or young. Releases that were withdrawn, retired or removed are kept for the site's
    modules.keep_days.
    """
    from hpcstack.core.errors import InputError, format_count
    from hpcstack.publish import gc
    from hpcstack.publish.purge import remove_items

    if not 0 <= older_than < 1e6:
        raise InputError(f"--older-than {older_than:g}: a number of days, 0 or more")

    found = gc.list_items(session.site, session.runner, older_than, slurm=not no_slurm)
    going = [item for item in found if not item.keep]
    if not dry_run:
        remove_items(going, make_publisher(session, slurm=not no_slurm))

    total = sum(item.size for item in going)
    document = {
        "would_remove" if dry_run else "removed": [_item_document(item) for item in going],
        "kept": [_item_document(item) for item in found if item.keep],
        "bytes": total,
    }

    def text() -> str:
        rows = _list_rows(found, going, every=every)
        done = "would remove" if dry_run else "removed"
        last = f"{done} {format_count(len(going), 'item')}, {total / 1e9:.2f} GB\n"
        kept = len(found) - len(going)
        if kept and not every:
            last += f"{format_count(kept, 'item')} kept: --all says why\n"
        if not rows:
            return last
        return format_table(rows, ("KIND", "WHAT", "KEY", "ENGINE", "SIZE", "MADE", "WHY")) + last

    answer(document, as_json, text)


def _list_rows(found: list[Item], going: list[Item], *, every: bool) -> list[tuple[str, ...]]:
    """Return the table's rows: all that was FOUND with EVERY, else what is GOING.

    Without EVERY, a kind of which very many are going is one row with their sum.
    """
    if every:
        return [_make_row(item) for item in found]

    kinds = [item.kind for item in going]
    summed_kinds = [kind for kind in dict.fromkeys(kinds) if kinds.count(kind) > MOST_LINES]
    rows = [_make_row(item) for item in going if item.kind not in summed_kinds]
    for kind in summed_kinds:
        rows.append(_sum_up(kind, [item for item in going if item.kind == kind]))
    return rows


def _make_row(item: Item) -> tuple[str, ...]:
    return (
        item.kind,
        item.what or item.path.name[:24],
        "" if item.kind == "release" else item.path.name[:12],
        item.engine,
        f"{item.size / 1e6:.0f} MB",
        item.made,
        item.keep or f"GOES: {item.why}",
    )


def _sum_up(kind: str, items: list[Item]) -> tuple[str, ...]:
    """Return one row for many ITEMS of a KIND.

    Cached build steps become many, for example: a user has some for every site that he builds for.
    """
    size = sum(item.size for item in items)
    return kind, f"{len(items)} of them", "", "", f"{size / 1e6:.0f} MB", "", "GO: --all names each"


def _item_document(item: object) -> dict[str, object]:
    from dataclasses import asdict

    return {**asdict(item), "path": str(item.path)}  # type: ignore[call-overload, attr-defined]
