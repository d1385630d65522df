"""`hpcstack lock`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hpcstack.cli.session import Session, answer, json_option, progress, stack_argument

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.lock.model import Lock, LockedPlatform


@click.command("lock")
@stack_argument
@click.option("--check", is_flag=True, help="Only say whether the lock is that of the recipe; offline.")
@click.option("--base-only", is_flag=True, help="Ask the registry alone: no pull; says what is left open.")
@json_option
@click.pass_obj
def command(session: Session, name: str, check: bool, base_only: bool, as_json: bool) -> None:
    """Write down what a stack's names mean: the base by digest, pip's files by hash, apt's versions, git's commits.

    The packages are settled inside the base, by its own pip and apt.
    """
    if check:
        _check(session, name, as_json)
        return
    from hpcstack.locking import make_lock, write_lock

    recipe = session.recipe(name)
    with progress(f"locking {recipe.stack.full_name}") as step:
        lock = make_lock(recipe, session.site, session.registry, session.runner, step, base_only=base_only)
    path = write_lock(recipe, session.site, lock)
    answer({"path": str(path), **lock.model_dump(mode="json")}, as_json, lambda: _text(path, lock))


def _text(path: Path, lock: Lock) -> str:
    base = lock.base
    rows = [("base", f"{base.registry}/{base.repository}:{base.tag}"), ("answered", base.answered_by)]
    for name, platform in base.platforms.items():
        rows.append((name, platform.digest))
        holds = ", ".join(f"{key} {value}" for key, value in lock.facts(name).items())
        rows += [("  holds", holds)] if holds else []
        rows += [("  adds", added)] if (added := _added(platform)) else []
        sources = ", ".join(platform.built_in_place())
        rows += [("  builds", f"{sources} (from source: its build tools are not locked)")] if sources else []
    rows += [("source", f"{name} {commit}") for name, commit in lock.sources.items()]
    rows += [("open", f"{', '.join(lock.unresolved)} (settled in the build)")] if lock.unresolved else []
    rows += [("STAND-IN", lock.stand_in())] if lock.stand_in() else []
    return "\n".join([str(path), *(f"  {key:<12} {value}" for key, value in rows)])


def _added(platform: LockedPlatform) -> str:
    sets = {"apt": platform.apt, "conda": platform.conda, "pip": platform.pip}
    return ", ".join(f"{len(found)} {kind}" for kind, found in sets.items() if found)


def _check(session: Session, name: str, as_json: bool) -> None:
    from hpcstack.errors import AnswerIsNo
    from hpcstack.lock.check import verdict
    from hpcstack.lock.place import lock_path

    recipe = session.recipe(name)
    path, full = lock_path(recipe, session.site), recipe.stack.full_name
    found = verdict(recipe, session.site)
    if found.reasons and not as_json:
        state = "is stale" if path.exists() else "is not there"
        what = f"the lock of {full} ({path}) {state}: {'; '.join(found.reasons)}"
        raise AnswerIsNo(what, f"hpcstack lock {full}")
    document = {"path": str(path), "current": not found.reasons, "reasons": found.reasons, "unresolved": found.open}
    left = f", and leaves open: {', '.join(found.open)}" if found.open else ""
    answer(document, as_json, lambda: f"{path}: current{left}")
    if found.reasons:
        raise click.exceptions.Exit(1)
