"""`hpcstack bump`.

Tested in tests/unit/test_bump.py and tests/integration/test_moving_on.py.
"""

from __future__ import annotations

import fnmatch
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.published import DRY_RUN
from hpcstack.cli.session import (
    Session,
    answer,
    complete_stacks,
    is_pattern,
    json_option,
    say,
    show_progress,
)

if TYPE_CHECKING:
    from hpcstack.bump import Move, Planner
    from hpcstack.recipe.catalog import Recipe


@click.command("bump")
@click.argument(
    "names",
    metavar="STACK...",
    nargs=-1,
    required=True,
    shell_complete=lambda ctx, _param, start: complete_stacks(ctx, start),
)
@click.option(
    "--to", "month", default="", metavar="MONTH", help="Move to this month of the base, as 26.08."
)
@click.option("--newest", is_flag=True, help="Move each to the newest tag of its base.")
@click.option("--no-lock", is_flag=True, help="Only edit the recipes.")
@DRY_RUN
@json_option
@click.pass_obj
def command(
    session: Session,
    names: tuple[str, ...],
    month: str,
    newest: bool,
    no_lock: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Move stacks to a newer base: edit their recipes, lock them, and show what changes.

    STACK is a stack, the first part of its name, or a pattern, which means recipes of your own. Of
    each stack the newest version is moved. Where its version is the month of its base, the new one
    comes beside it, and the old one stays; else the base is changed in place. Comments stay. What
    is printed can stand as the text of a merge request.
    """
    from hpcstack.bump import Planner, choose_newest
    from hpcstack.core.errors import InputError

    if bool(month) == newest:
        raise InputError(
            "say where to: --to MONTH, or --newest",
            f"hpcstack bump {names[0]} --newest",
            page="new-ngc-month",
        )

    recipes = choose_newest(_find_recipes(session, names))
    planner = Planner(session.catalog, session.site, session.registry, session.own_folder, month)
    moves, rows = _plan_each(planner, recipes)
    if dry_run:
        rows += [{**_describe_move(move), "said": _foretell_move(move)} for move in moves]
    else:
        rows += _make_each(session, planner, moves, lock=not no_lock)

    answer(rows, as_json, lambda: "\n".join(row["said"] for row in rows))
    failed = [row["status"] for row in rows if row["status"]]
    if failed:
        raise click.exceptions.Exit(failed[0])


def _find_recipes(session: Session, names: tuple[str, ...]) -> list[Recipe]:
    """Return the recipes that NAMES mean. Raise InputError for a name that means none."""
    from hpcstack.bump import is_shipped
    from hpcstack.core.errors import InputError

    out = []
    for name in names:
        if is_pattern(name):
            found = [session.recipe(full) for full in fnmatch.filter(session.names, name)]
            found = [recipe for recipe in found if not is_shipped(recipe)]
            if not found:
                raise InputError(
                    f"no recipe of your own matches {name!r}",
                    "name one that comes with hpcstack by the first part of its name: "
                    "hpcstack bump pytorch --newest",
                    page="new-ngc-month",
                )
            out += found
            continue

        family = [full for full in session.names if full.startswith(f"{name}-")]
        of_family = [session.recipe(full) for full in family]
        of_family = [recipe for recipe in of_family if recipe.stack.name == name]
        out += of_family or [session.recipe(name)]
    return out


def _plan_each(planner: Planner, recipes: list[Recipe]) -> tuple[list[Move], list[dict[str, Any]]]:
    """Return how RECIPES are moved, and a row for each that cannot be."""
    from hpcstack.core.errors import HpcstackError

    moves = []
    rows = []
    # What extends another stack is planned behind it, so that it finds the new one.
    for recipe in sorted(recipes, key=planner.catalog.count_extended):
        name = recipe.stack.full_name
        say(f"looking at the tags of {recipe.stack.base.image}")
        try:
            moves.append(planner.plan(recipe))
        except HpcstackError as error:
            rows.append(_describe_failure(name, error))
    return moves, rows


def _make_each(
    session: Session, planner: Planner, moves: list[Move], *, lock: bool
) -> list[dict[str, Any]]:
    """Write the recipes of MOVES, then LOCK one after another. Return a row for each."""
    from hpcstack.bump import lock_moved, write_edit
    from hpcstack.core.errors import HpcstackError

    rows = []
    written = []
    for move in moves:
        try:
            if move.edit:
                write_edit(move.edit)
            written.append(move)
        except HpcstackError as error:
            rows.append(_describe_failure(move.recipe.stack.full_name, error))

    for move in written:
        row = _describe_move(move)
        if not lock:
            rows.append({**row, "said": _foretell_move(move)})
            continue
        recipe = planner.catalog.find(move.stack)
        try:
            with show_progress(f"locking {move.stack}") as progress:
                moved = lock_moved(move, recipe, session.workbench(progress))
        except HpcstackError as error:
            failure = _describe_failure(move.stack, error)
            rows.append({**row, **failure})
            continue
        rows.append(
            {
                **row,
                "said": moved.format_markdown(),
                "lock": str(moved.lock),
                "changes": [asdict(change) for change in moved.changes],
                "misfits": moved.misfits,
            }
        )
    return rows


def _describe_move(move: Move) -> dict[str, Any]:
    """Return MOVE for JSON."""
    return {
        "stack": move.stack,
        "from": move.recipe.stack.full_name,
        "status": 0,
        "file": str(move.edit.path) if move.edit else "",
        "notes": move.edit.notes if move.edit else (),
        "diff": move.format_diff(),
        "changes": [asdict(change) for change in move.holds],
    }


def _foretell_move(move: Move) -> str:
    """Return how the recipe of MOVE changes, as text."""
    if not move.edit:
        return f"{move.stack} is on {move.recipe.stack.base.tag} already"
    lines = [move.format_diff()]
    lines += [f"# {one.name}: {one.before} -> {one.after}" for one in move.holds]
    lines += [f"# NOTE: {note}" for note in move.edit.notes]
    return "\n".join(lines)


def _describe_failure(name: str, error: Any) -> dict[str, Any]:
    hint = f" ({error.hint})" if error.hint else ""
    return {"stack": name, "status": error.exit_code, "said": f"{name}: {error.message}{hint}"}
