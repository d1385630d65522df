"""`hpcstack lock`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from hpcstack.cli.session import (
    Session,
    answer,
    choose_stacks,
    complete_stacks,
    json_option,
    show_progress,
)

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.lock.check import Staleness
    from hpcstack.lock.file import LockFile
    from hpcstack.lock.model import Lock, LockedPlatform


@click.command("lock")
@click.argument(
    "names",
    metavar="STACK...",
    nargs=-1,
    required=True,
    shell_complete=lambda ctx, _param, start: complete_stacks(ctx, start),
)
@click.option("--check", is_flag=True, help="Only check that the lock matches the recipe; offline.")
@click.option(
    "--base-only", is_flag=True, help="Ask the registry alone: no pull; says what is left open."
)
@json_option
@click.pass_obj
def command(
    session: Session, names: tuple[str, ...], check: bool, base_only: bool, as_json: bool
) -> None:
    """Write down what a stack's names mean: the base by digest, pip's files by hash, apt's
    versions, git's commits.

    The packages are resolved inside the base, by its own pip and apt. Several stacks, or
    'pytorch-*', come in turn.
    """
    stacks = choose_stacks(session, names)
    if len(stacks) > 1:
        _many(session, stacks, check=check, base_only=base_only, as_json=as_json)
    elif check:
        _check(session, stacks[0], as_json)
    else:
        path, lock = _locked(session, stacks[0], base_only=base_only)
        answer(
            {"path": str(path), **lock.model_dump(mode="json")}, as_json, lambda: _text(path, lock)
        )


def _many(
    session: Session, stacks: list[str], *, check: bool, base_only: bool, as_json: bool
) -> None:
    """One after another; the first failure's exit code, once all were tried."""
    from hpcstack.core.errors import HpcstackError
    from hpcstack.lock.file import LockFile

    rows, failed = [], 0
    for name in stacks:
        try:
            if check:
                reasons = _state(LockFile(session.recipe(name), session.site)).reasons
                failed = failed or int(bool(reasons))
                rows.append({"stack": name, "said": "; ".join(reasons) or "current"})
            else:
                rows.append(
                    {"stack": name, "said": str(_locked(session, name, base_only=base_only)[0])}
                )
        except HpcstackError as error:
            failed = failed or error.exit_code
            rows.append({"stack": name, "said": error.message})
    answer(rows, as_json, lambda: "\n".join(f"{row['stack']}: {row['said']}" for row in rows))
    if failed:
        raise click.exceptions.Exit(failed)


def _locked(session: Session, name: str, *, base_only: bool) -> tuple[Path, Lock]:
    from hpcstack.lock.file import LockFile
    from hpcstack.resolve.make_lock import make_lock

    recipe = session.recipe(name)
    with show_progress(f"locking {recipe.stack.full_name}") as progress:
        lock = make_lock(recipe, session.workbench(progress), base_only=base_only)
    return LockFile(recipe, session.site).write(lock), lock


def _text(path: Path, lock: Lock) -> str:
    base = lock.base
    rows = [
        ("base", f"{base.registry}/{base.repository}:{base.tag}"),
        ("answered", base.answered_by),
    ]
    for name, platform in base.platforms.items():
        rows.append((name, platform.digest))
        holds = ", ".join(f"{key} {value}" for key, value in lock.facts(name).items())
        rows += [("  holds", holds)] if holds else []
        rows += [("  adds", added)] if (added := _added(platform)) else []
        sources = ", ".join(
            f"{entry.name} {entry.version}" for entry in platform.source_distributions()
        )
        if sources and platform.pip_build:
            tools = ", ".join(f"{entry.name} {entry.version}" for entry in platform.pip_build)
            rows.append(("  builds", f"{sources} (from source, with {tools})"))
        elif sources:
            rows.append(("  builds", f"{sources} (from source)"))
    rows += [("source", f"{name} {commit}") for name, commit in lock.sources.items()]
    rows += (
        [("open", f"{', '.join(lock.unresolved)} (resolved in the build)")]
        if lock.unresolved
        else []
    )
    rows += [("STAND-IN", lock.stand_in())] if lock.stand_in() else []
    return "\n".join([str(path), *(f"  {key:<12} {value}" for key, value in rows)])


def _added(platform: LockedPlatform) -> str:
    sets = {"apt": platform.apt, "conda": platform.conda, "pip": platform.pip}
    return ", ".join(f"{len(found)} {kind}" for kind, found in sets.items() if found)


def _state(file: LockFile) -> Staleness:
    """Why the lock of FILE is not the recipe's, or not what the site requires of a base."""
    from hpcstack.resolve.signed_base import find_missing_signature

    found, lock = file.state(), file.read()
    missing = find_missing_signature(lock, file.site) if lock else None
    return replace(found, reasons=(*found.reasons, missing.reason)) if missing else found


def _check(session: Session, name: str, as_json: bool) -> None:
    from hpcstack.core.errors import AnswerIsNo
    from hpcstack.lock.file import LockFile

    recipe = session.recipe(name)
    file, full = LockFile(recipe, session.site), recipe.stack.full_name
    path, found = file.path, _state(file)
    if found.reasons and not as_json:
        state = "is stale" if path.exists() else "is not there"
        what = f"the lock of {full} ({path}) {state}: {'; '.join(found.reasons)}"
        raise AnswerIsNo(what, f"hpcstack lock {full}")
    unresolved = list(map(str, found.open))
    document = {
        "path": str(path),
        "current": not found.reasons,
        "reasons": found.reasons,
        "unresolved": unresolved,
    }
    left = f", and leaves open: {', '.join(unresolved)}" if unresolved else ""
    answer(document, as_json, lambda: f"{path}: current{left}")
    if found.reasons:
        raise click.exceptions.Exit(1)
