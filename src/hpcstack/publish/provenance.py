"""Finds the git commit that a recipe is at."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.core.process import Runner

GIT_S = 10  # seconds: a status of a large repository on a slow filesystem
CHANGED = ", changed since"


def find_commit(recipe: Path, runner: Runner) -> str:
    """Return the commit of RECIPE's folder, with `, changed since` where a file there has changed.

    Empty where RECIPE is in no repository, or is not tracked in it, or git does not say.
    """
    if not runner.has("git"):
        return ""

    path = recipe.resolve()
    # A repository's own configuration may name a program as its fsmonitor: it is not run.
    git = ["git", "-c", "core.fsmonitor=false", "-C", str(path.parent)]
    head = runner.output([*git, "rev-parse", "--verify", "--quiet", "HEAD"], timeout=GIT_S)
    if head.status or not head.stdout.strip():
        return ""

    listed = runner.output([*git, "ls-files", "--error-unmatch", "--", path.name], timeout=GIT_S)
    if listed.status:
        return ""

    # The whole folder: the recipe may extend, or copy into the image, what lies beside it.
    status = runner.output([*git, "status", "--porcelain", "--", "."], timeout=GIT_S)
    is_clean = not status.status and not status.stdout.strip()
    commit = head.stdout.strip()
    return commit if is_clean else commit + CHANGED
