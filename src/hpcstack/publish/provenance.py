"""Finds the git commit that a recipe is at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.core.git import explain_difference, find_head, find_repository, run_git

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.core.process import Runner

CHANGED = ", changed since"
UNKNOWN = ", not known whether changed since"


def find_commit(recipe: Path, runner: Runner) -> str:
    """Return the commit of RECIPE's folder, with `, changed since` where a file there has changed.

    Where that was not found out, it says so. Empty where RECIPE is in no repository, or is not
    tracked in it, or git does not say.
    """
    if not runner.has("git"):
        return ""

    path = recipe.resolve()
    repository = find_repository(path.parent)
    commit = find_head(repository, runner) if repository else ""
    if repository is None or not commit:
        return ""

    # In the commit: what is only in the index is in none.
    committed = run_git(repository, path.parent, ["ls-tree", commit, "--", path.name], runner)
    if committed.status or not committed.stdout:
        return ""

    # The whole folder: the recipe may extend, or copy into the image, what lies beside it.
    difference = explain_difference(repository, path.parent, commit, runner)
    if difference is None:
        return commit + UNKNOWN
    return commit + CHANGED if difference else commit
