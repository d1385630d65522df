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
from hpcstack.cli.several import describe_failure

if TYPE_CHECKING:
    from hpcstack.bump import Move, Planner
    from hpcstack.core.errors import HpcstackError
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

    found, rows = _find_recipes(session, names)
    planner = Planner(session.catalog, session.site, session.registry, session.own_folder, month)
    moves = _plan_each(planner, choose_newest(found), rows)
    if dry_run:
        rows += [{**_describe_move(move), "said": _foretell_move(move)} for move in moves]
    else:
        rows += _make_each(session, planner, moves, lock=not no_lock)

    answer(rows, as_json, lambda: "\n".join(row["said"] for row in rows))
    failed = [row["status"] for row in rows if row["status"]]
    if failed:
        raise click.exceptions.Exit(failed[0])


def _find_recipes(
    session: Session, names: tuple[str, ...]
) -> tuple[list[Recipe], list[dict[str, Any]]]:
    """Return the recipes that NAMES mean, and a row for each that is wrong.

    Raise InputError for a name that means none.
    """
    from hpcstack.bump import is_shipped_file
    from hpcstack.core.errors import HpcstackError, InputError

    chosen: list[str] = []
    for name in names:
        if name.endswith(".yaml"):
            raise InputError(
                f"{name} is a file: name the stack that is in it",
                "hpcstack list shows all stacks",
                page="new-ngc-month",
            )
        if is_pattern(name):
            own = {full for full, path in session.names.items() if not is_shipped_file(path)}
            found = fnmatch.filter(sorted(own), name)
            if not found:
                raise InputError(
                    f"no recipe of your own matches {name!r}",
                    "name one that comes with hpcstack by the first part of its name: "
                    "hpcstack bump pytorch --newest",
                    page="new-ngc-month",
                )
            chosen += found
        else:
            family = [full for full in session.names if full.startswith(f"{name}-")]
            chosen += family if family and name not in session.names else [name]

    recipes, rows = [], []
    for full in dict.fromkeys(chosen):
        try:
            recipe = session.recipe(full)
        except HpcstackError as error:
            if len(chosen) == 1:
                raise
            rows.append(_describe_failed(full, error))
            continue
        stack = recipe.stack
        is_named = full in names or stack.name in names
        by_pattern = any(is_pattern(name) and fnmatch.fnmatch(full, name) for name in names)
        # `pytorch` is not the beginning of `pytorch-lightning`; and an adopted image follows no
        # registry, as a digest does not.
        if is_named or (by_pattern and not stack.adopted and stack.base.tag):
            recipes.append(recipe)
    return recipes, rows


def _plan_each(planner: Planner, recipes: list[Recipe], rows: list[dict[str, Any]]) -> list[Move]:
    """Return how RECIPES are moved; add a row for each that cannot be to ROWS."""
    from hpcstack.core.errors import HpcstackError

    moves = []
    # What extends another stack is planned behind it, so that it finds the new one.
    for recipe in sorted(recipes, key=planner.catalog.count_extended):
        say(f"looking at the tags of {recipe.stack.base.image}")
        try:
            moves.append(planner.plan(recipe))
        except HpcstackError as error:
            rows.append(_describe_failed(recipe.stack.full_name, error))
    return moves


def _make_each(
    session: Session, planner: Planner, moves: list[Move], *, lock: bool
) -> list[dict[str, Any]]:
    """Write the recipes of MOVES, then LOCK one after another. Return a row for each stack."""
    from hpcstack.bump import write_edit
    from hpcstack.core.errors import HpcstackError

    rows = []
    written = []
    for move in moves:
        try:
            if move.edit:
                write_edit(move.edit)
            written.append(move)
        except HpcstackError as error:
            rows.append(_describe_failed(move.recipe.stack.full_name, error))

    for move in written:
        if not lock:
            rows.append({**_describe_move(move), "said": _foretell_move(move)})
            continue
        rows += [_lock_one(session, planner, move, stack) for stack in move.stacks]
    return rows


def _lock_one(session: Session, planner: Planner, move: Move, stack: str) -> dict[str, Any]:
    """Lock STACK, which MOVE has moved. Return its row."""
    from hpcstack.bump import lock_moved
    from hpcstack.core.errors import HpcstackError

    row = {**_describe_move(move), "stack": stack}
    try:
        with show_progress(f"locking {stack}") as progress:
            moved = lock_moved(move, stack, planner.catalog, session.workbench(progress))
    except HpcstackError as error:
        return {**row, **_describe_failed(stack, error)}
    if not move.edit and not moved.changes:
        return {**row, "said": _foretell_move(move), "lock": str(moved.lock)}
    return {
        **row,
        "from": moved.before,
        "said": moved.format_markdown(),
        "lock": str(moved.lock),
        "changes": [asdict(change) for change in moved.changes],
        "misfits": moved.misfits,
    }


def _describe_move(move: Move) -> dict[str, Any]:
    """Return MOVE for JSON."""
    return {
        "stack": move.stacks[0],
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
        return f"{move.stacks[0]} is there already"
    lines = [move.format_diff()]
    lines += [f"# {one.name}: {one.before} -> {one.after}" for one in move.holds]
    lines += [f"# NOTE: {note}" for note in move.edit.notes]
    return "\n".join(lines)


def _describe_failed(name: str, error: HpcstackError) -> dict[str, Any]:
    row = describe_failure(error)
    return {"stack": name, **row, "said": f"{name}: {row['said']}"}
