"""Which commit a recipe was, when its image was published."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.core.process import Runner

GIT_S = 10  # seconds: a status of a large repository on a slow filesystem
CHANGED = ", changed since"


def find_commit(recipe: Path, runner: Runner) -> str:
    """The commit that RECIPE's folder is at, with `, changed since` where a file of that folder is
    another; empty where it is in no repository, or not one of its files, or git does not say.
    """
    if not runner.has("git"):
        return ""
    path = recipe.resolve()
    git = [
        "git",
        "-c",
        "core.fsmonitor=false",
        "-C",
        str(path.parent),
    ]  # no program of the repository's own
    head = runner.output([*git, "rev-parse", "--verify", "--quiet", "HEAD"], timeout=GIT_S)
    if head.status or not head.stdout.strip():
        return ""
    listed = runner.output([*git, "ls-files", "--error-unmatch", "--", path.name], timeout=GIT_S)
    if listed.status:
        return ""
    status = runner.output([*git, "status", "--porcelain", "--", "."], timeout=GIT_S)
    is_clean = not status.status and not status.stdout.strip()
    return head.stdout.strip() + ("" if is_clean else CHANGED)
