"""`hpcstack lint`.

Tested in tests/unit/cli/test_verbs.py and tests/hostile/test_neighbours.py.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcstack.cli.session import Session, answer, complete_stacks, json_option
from hpcstack.core.errors import format_count

if TYPE_CHECKING:
    from hpcstack.core.errors import Problem
    from hpcstack.recipe.catalog import Recipe


@click.command("lint")
@click.argument(
    "names",
    metavar="[STACK|FILE]...",
    nargs=-1,
    shell_complete=lambda ctx, _param, start: complete_stacks(ctx, start),
)
@click.option("--all", "everything", is_flag=True, help="Check every recipe that can be found.")
@click.option("--strict", is_flag=True, help="Treat warnings as failures (exit 1).")
@json_option
@click.pass_obj
def command(
    session: Session, names: tuple[str, ...], everything: bool, strict: bool, as_json: bool
) -> None:
    """Check recipes, and report all problems at once.

    Each problem is printed as file:line:column. Warnings do not fail unless --strict is given.
    """
    from hpcstack.core.errors import InputError, ProblemsError

    paths = session.catalog.files() if everything else []
    if not names and not everything:
        raise InputError("say which recipes", "hpcstack lint --all")

    recipes, errors = _read_recipes(session, names, paths)
    problems = set(errors)
    for recipe in recipes:
        problems.update(_find_warnings(session, recipe))
    found = sorted(problems)
    failed = any(not problem.warning for problem in found)

    document = {"checked": len(recipes), "problems": [asdict(problem) for problem in found]}
    if failed and not as_json:
        raise ProblemsError(found)
    lines = [*map(str, found), _summarise(len(recipes), len(found))]
    answer(document, as_json, lambda: "\n".join(lines))
    if found:
        raise click.exceptions.Exit(2 if failed else int(strict))


def _summarise(stacks: int, warnings: int) -> str:
    result = format_count(warnings, "warning") if warnings else "no problem"
    return f"{format_count(stacks, 'stack')}, {result}"


def _read_recipes(
    session: Session, names: tuple[str, ...], paths: list[Path]
) -> tuple[list[Recipe], list[Problem]]:
    """Return the recipes that can be read, and the problems of the others."""
    from hpcstack.core.errors import InputError, Problem, ProblemsError

    recipes: list[Recipe] = []
    problems: list[Problem] = []
    for name in [*names, *map(str, paths)]:
        try:
            if name.endswith(".yaml") and Path(name).name.startswith("_"):
                continue  # a template: it is checked with the stacks that extend it

            if name.endswith(".yaml"):
                recipes += session.catalog.read(Path(name))
            else:
                recipes.append(session.recipe(name))
        except ProblemsError as error:
            problems += error.problems
        except InputError as error:
            if len(names) + len(paths) == 1:
                raise
            problems.append(Problem(name, 1, 1, "", error.message))
    return recipes, problems


def _find_warnings(session: Session, recipe: Recipe) -> list[Problem]:
    from hpcstack.lint import lint_recipe

    # all names, for which every recipe is read, are only needed to look up a successor
    names = session.names if recipe.stack.lifecycle.successor else ()
    return lint_recipe(recipe, session.site, names)
