"""`hpcstack diff`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcstack.cli.session import Session, answer, complete, json_option, say, table

if TYPE_CHECKING:
    from hpcstack.lock.model import Lock
    from hpcstack.recipe.catalog import Recipe


@click.command("diff")
@click.argument("before", metavar="STACK|LOCK", shell_complete=lambda ctx, _param, start: complete(ctx, start))
@click.argument("after", metavar="STACK|LOCK", shell_complete=lambda ctx, _param, start: complete(ctx, start))
@click.option("--markdown", "as_markdown", is_flag=True, help="A table for a pull request.")
@click.option("--check", is_flag=True, help="Exit 1 if anything differs.")
@json_option
@click.pass_obj
def command(session: Session, before: str, after: str, as_markdown: bool, check: bool, as_json: bool) -> None:
    """What differs between two locks (files) or two stacks: base, what it holds, packages, sources, spec."""
    from hpcstack.core.errors import InputError
    from hpcstack.lock import diff

    low, high = _side(session, before), _side(session, after)
    if low[1] is None or high[1] is None:
        if low[0] is None or high[0] is None:
            unlocked = after if high[1] is None else before
            raise InputError(f"{unlocked} has no lock to compare", f"hpcstack lock {unlocked}")
        say(f"only the specs are compared: {after if high[1] is None else before} is not locked")
    changes = diff.locks(low[1], high[1]) if low[1] and high[1] else []
    if low[0] and high[0]:
        changes += diff.specs(_spec(low[0]), _spec(high[0]))

    def text() -> str:
        if as_markdown:
            return diff.markdown(changes, before, after)
        rows = [(c.section, c.name, c.before or "-", c.after or "-") for c in changes]
        return table(rows, ("", "", before, after)) if rows else "no difference"

    answer([asdict(change) for change in changes], as_json, text)
    if check and changes:
        raise click.exceptions.Exit(1)


def _spec(recipe: Recipe) -> dict[str, object]:
    return recipe.stack.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def _side(session: Session, name: str) -> tuple[Recipe | None, Lock | None]:
    """The recipe that NAME is (None for a lock's file), and its lock (None if there is none)."""
    from hpcstack.lock import model
    from hpcstack.lock.file import LockFile

    if name.endswith(".json"):
        return None, model.read(Path(name).resolve())
    recipe = session.recipe(name)
    return recipe, LockFile(recipe, session.site).read()
