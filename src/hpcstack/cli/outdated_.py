"""`hpcstack outdated`.

Tested in tests/unit/resolve/test_outdated.py and tests/integration/test_ngc_registry.py.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.session import (
    Session,
    answer,
    choose_stacks,
    complete_stacks,
    format_table,
    json_option,
    say,
    show_progress,
)
from hpcstack.cli.several import describe_failure

if TYPE_CHECKING:
    from hpcstack.recipe.catalog import Recipe


@click.command("outdated")
@click.argument(
    "names",
    metavar="[STACK]...",
    nargs=-1,
    shell_complete=lambda ctx, _param, start: complete_stacks(ctx, start),
)
@click.option(
    "--packages",
    is_flag=True,
    help="Also ask the bases' own apt, conda and pip what they would choose now.",
)
@click.option("--check", is_flag=True, help="Exit 1 if there is anything newer.")
@json_option
@click.pass_obj
def command(
    session: Session, names: tuple[str, ...], packages: bool, check: bool, as_json: bool
) -> None:
    """Look for newer tags of a base image, and show what the newest would change.

    A tag that has moved to another digest is told too: that is how security rebuilds come. Without
    a STACK, all stacks that are locked here are looked at.
    """
    from hpcstack.core.errors import HpcstackError
    from hpcstack.resolve.outdated import NewerBases, list_locked_recipes

    chosen = choose_stacks(session, names) if names else []
    if not names:
        recipes = list_locked_recipes(session.catalog, session.site, say)
        chosen = [recipe.stack.full_name for recipe in recipes]

    newer = NewerBases(session.site, session.registry)
    rows: list[dict[str, Any]] = []
    failed = 0
    for name in chosen:
        try:
            recipe = session.recipe(name)
            row = asdict(newer.find(recipe))
            if packages:
                row["packages"] = _find_packages(session, recipe)
        except HpcstackError as error:
            if len(chosen) == 1:
                raise
            failed = failed or error.exit_code
            row = {"stack": name, **describe_failure(error)}
        rows.append(row)

    answer(rows, as_json, lambda: _format_text(rows, packages=packages))
    if failed:
        raise click.exceptions.Exit(failed)
    if check and any(_is_outdated(row) for row in rows):
        raise click.exceptions.Exit(1)


def _find_packages(session: Session, recipe: Recipe) -> list[dict[str, str]]:
    from hpcstack.resolve.outdated import find_newer_packages

    with show_progress(f"asking the base of {recipe.stack.full_name}") as progress:
        return [asdict(one) for one in find_newer_packages(recipe, session.workbench(progress))]


def _is_outdated(row: dict[str, Any]) -> bool:
    return bool(row["newer"] or row["moved_to"] or row.get("packages"))


def _format_text(rows: list[dict[str, Any]], *, packages: bool) -> str:
    if not rows:
        return "nothing is locked here"

    lines = []
    for row in rows:
        if "said" in row:
            lines.append((row["stack"], "", "", row["said"]))
            continue
        changes = [f"{one['name']} {one['before']} -> {one['after']}" for one in row["changes"]]
        if row["moved_to"]:
            since = f" since {row['moved_on']}" if row["moved_on"] else ""
            changes.insert(0, f"same tag, other digest{since}: {row['moved_to'][:19]}")
        lines.append((row["stack"], row["tag"], row["newest"] or "(newest)", ", ".join(changes)))
    text = format_table(lines, ("STACK", "BASE", "NEWEST", "CHANGES"))
    if not packages:
        return text + "\npackages were not looked at: hpcstack outdated --packages"

    found = [
        (row["stack"], one["section"], one["name"], one["before"] or "-", one["after"] or "-")
        for row in rows
        for one in row.get("packages", ())
    ]
    if not found:
        return text + "\nevery package is the newest that is allowed"
    return text + "\n" + format_table(found, ("STACK", "", "PACKAGE", "LOCKED", "NOW"))
