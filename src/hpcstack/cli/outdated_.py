"""`hpcstack outdated`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.session import Session, answer, complete, json_option, say, table

if TYPE_CHECKING:
    from hpcstack.recipe.catalog import Recipe


@click.command("outdated")
@click.argument("names", metavar="[STACK]...", nargs=-1, shell_complete=lambda ctx, _param, start: complete(ctx, start))
@click.option("--check", is_flag=True, help="Exit 1 if a newer base is there.")
@json_option
@click.pass_obj
def command(session: Session, names: tuple[str, ...], check: bool, as_json: bool) -> None:
    """Newer tags of the same base, and what would change with the newest. Without STACK: all that are locked here."""
    recipes = [session.recipe(name) for name in names] or _locked(session)
    tags: dict[str, list[str]] = {}
    rows = [_row(session, recipe, tags) for recipe in recipes]

    def text() -> str:
        lines = [
            (
                row["stack"],
                row["tag"],
                row["newest"] or "(newest)",
                ", ".join(f"{c['name']} {c['before']} -> {c['after']}" for c in row["changes"]),
            )
            for row in rows
        ]
        return table(lines, ("STACK", "BASE", "NEWEST", "CHANGES")) if lines else "nothing is locked here"

    answer(rows, as_json, text)
    if check and any(row["newer"] for row in rows):
        raise click.exceptions.Exit(1)


def _locked(session: Session) -> list[Recipe]:
    from hpcstack.core.errors import ProblemsError
    from hpcstack.lock.file import LockFile

    out = []
    for path in session.catalog.files():
        try:
            out += [r for r in session.catalog.read(path) if LockFile(r, session.site).path.exists()]
        except ProblemsError as error:
            say(f"{path.name} is left out: {error.problems[0]}")
    return out


def _row(session: Session, recipe: Recipe, tags: dict[str, list[str]]) -> dict[str, Any]:
    from hpcstack.hardware.facts import facts_of
    from hpcstack.lint import base_environment
    from hpcstack.lock.diff import holds, newer
    from hpcstack.lock.file import LockFile

    base = recipe.stack.base
    repository = f"{base.registry}/{base.repository}"
    if repository not in tags:
        tags[repository] = session.registry.tags(base)
    found = newer(base.tag, tags[repository]) if base.tag else []
    changes = []
    if found:
        lock = LockFile(recipe, session.site).read()
        had = facts_of(base_environment(recipe, lock))
        latest = base.model_copy(update={"image": f"{repository}:{found[-1]}", "platforms": base.platforms[:1]})
        changes = [asdict(change) for change in holds(had, session.registry.facts(latest))]
    return {
        "stack": recipe.stack.full_name,
        "base": repository,
        "tag": base.tag,
        "newest": found[-1] if found else "",
        "newer": found,
        "changes": changes,
    }
