"""`hpcstack outdated`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_ngc_registry.py.
"""

from __future__ import annotations

from dataclasses import asdict

import click

from hpcstack.cli.session import Session, answer, complete_stacks, format_table, json_option, say


@click.command("outdated")
@click.argument(
    "names",
    metavar="[STACK]...",
    nargs=-1,
    shell_complete=lambda ctx, _param, start: complete_stacks(ctx, start),
)
@click.option("--check", is_flag=True, help="Exit 1 if there is a newer base image.")
@json_option
@click.pass_obj
def command(session: Session, names: tuple[str, ...], check: bool, as_json: bool) -> None:
    """Look for newer tags of a base image, and show what the newest would change.

    Without a STACK, all stacks that are locked here are looked at.
    """
    from hpcstack.resolve.outdated import find_newer, list_locked_recipes

    recipes = [session.recipe(name) for name in names] or list_locked_recipes(
        session.catalog, session.site, say
    )
    rows = [asdict(one) for one in find_newer(recipes, session.site, session.registry)]

    def text() -> str:
        if not rows:
            return "nothing is locked here"

        lines = []
        for row in rows:
            changes = ", ".join(
                f"{change['name']} {change['before']} -> {change['after']}"
                for change in row["changes"]
            )
            lines.append((row["stack"], row["tag"], row["newest"] or "(newest)", changes))
        return format_table(lines, ("STACK", "BASE", "NEWEST", "CHANGES"))

    answer(rows, as_json, text)
    if check and any(row["newer"] for row in rows):
        raise click.exceptions.Exit(1)
