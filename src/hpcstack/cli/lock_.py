"""`hpcstack lock`.

Tested in tests/unit/cli/test_locks.py and tests/integration/test_ngc_inside.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from hpcstack.cli.session import (
    Session,
    answer,
    choose_stacks,
    complete_stacks,
    is_pattern,
    json_option,
    say,
    show_progress,
)
from hpcstack.cli.several import answer_each

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.lock.check import Staleness
    from hpcstack.lock.diff import Difference
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
@click.option(
    "--check", is_flag=True, help="Only check that the lock matches the recipe, without a network."
)
@click.option(
    "--base-only",
    is_flag=True,
    help="Lock only the base, without pulling it, and say what is left open.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="PACKAGE",
    help="Lock only this package anew. May be given several times.",
)
@json_option
@click.pass_obj
def command(
    session: Session,
    names: tuple[str, ...],
    check: bool,
    base_only: bool,
    only: tuple[str, ...],
    as_json: bool,
) -> None:
    """Pin a stack's base image, packages and sources to exact versions and digests.

    The base is pinned by digest, pip packages by hash, apt packages by version and git sources by
    commit. Packages are resolved inside the base, by its own pip and apt. Several stacks, or a
    pattern such as 'pytorch-*', are locked one after another.

    With --only, the base and every other package keep the versions that are locked: a security fix
    moves nothing else.
    """
    from hpcstack.core.errors import InputError

    if only and (check or base_only):
        raise InputError(
            "--only goes with neither --check nor --base-only",
            f"hpcstack lock {names[0]} --only {only[0]}",
            page="new-ngc-month",
        )

    stacks = choose_stacks(session, names)
    if only and any(map(is_pattern, names)):
        stacks = _choose_adding(session, stacks, only)
    if len(stacks) > 1 or any(map(is_pattern, names)):
        how = _HowToLock(base_only, only, by_pattern=any(map(is_pattern, names)))
        _lock_or_check_each(session, stacks, how, check=check, as_json=as_json)
    elif check:
        _check_lock(session, stacks[0], as_json)
    else:
        path, lock = _write_lock(session, stacks[0], _HowToLock(base_only, only))
        document = {"path": str(path), **lock.model_dump(mode="json")}
        answer(document, as_json, lambda: _format_text(path, lock))


@dataclass(frozen=True)
class _HowToLock:
    """What is locked: the base alone, or only these packages anew; by default everything."""

    base_only: bool = False
    only: tuple[str, ...] = ()
    by_pattern: bool = False  # of ONLY, those count that a stack adds


def _lock_or_check_each(
    session: Session, stacks: list[str], how: _HowToLock, *, check: bool, as_json: bool
) -> None:
    """Lock, or with CHECK only check, one stack after another."""
    from hpcstack.core.errors import AnswerIsNo
    from hpcstack.lock.file import LockFile

    def lock_or_check(name: str) -> dict[str, str]:
        if not check:
            path, _ = _write_lock(session, name, how)
            return {"said": str(path)}

        reasons = _find_staleness(LockFile(session.recipe(name), session.site)).reasons
        if reasons:
            raise AnswerIsNo("; ".join(reasons))
        return {"said": "current"}

    answer_each("stack", stacks, lock_or_check, as_json=as_json)


def _write_lock(session: Session, name: str, how: _HowToLock) -> tuple[Path, Lock]:
    """Lock the stack NAME. Return the lock, and the file that it was written to."""
    from hpcstack.lock.file import LockFile
    from hpcstack.resolve.make_lock import lock_anew, make_lock

    recipe = session.recipe(name)
    with show_progress(f"locking {recipe.stack.full_name}") as progress:
        bench = session.workbench(progress)
        if how.only:
            only = how.only
            if how.by_pattern:
                only = _choose_only(session, name, only)
            lock, moved = lock_anew(recipe, only, bench)
            _say_moved(recipe.stack.full_name, moved, only)
        else:
            lock = make_lock(recipe, bench, base_only=how.base_only)
    return LockFile(recipe, session.site).write(lock), lock


def _choose_adding(session: Session, stacks: list[str], only: tuple[str, ...]) -> list[str]:
    """Return those of STACKS whose locks add one of the packages ONLY. InputError for none.

    A recipe that is wrong is among them: locking it says what is wrong.
    """
    from hpcstack.core.errors import InputError

    out = []
    for name in stacks:
        try:
            adds = bool(_choose_only(session, name, only))
        except InputError:
            adds = True
        if adds:
            out.append(name)
    if not out:
        raise InputError(
            f"no lock of these stacks adds {', '.join(only)}",
            f"hpcstack find {only[0]} says what has it",
            page="new-ngc-month",
        )
    return out


def _choose_only(session: Session, name: str, only: tuple[str, ...]) -> tuple[str, ...]:
    """Return those packages of ONLY that the lock of NAME adds; none where it has no lock."""
    from hpcstack.lock.file import LockFile
    from hpcstack.resolve.make_lock import choose_added

    return choose_added(LockFile(session.recipe(name), session.site).read(), only)


def _say_moved(name: str, moved: list[Difference], only: tuple[str, ...]) -> None:
    """Say on stderr what has MOVED in the lock of NAME, in which ONLY might have."""
    for one in moved:
        say(f"{name}: {one.name} {one.before or '(new)'} -> {one.after or '(gone)'}")
    if not moved:
        say(
            f"{name}: nothing has moved: {', '.join(only)} is the newest that goes with what stays "
            "as it was locked. To force it, ask for its version in the recipe"
        )


def _format_text(path: Path, lock: Lock) -> str:
    base = lock.base
    rows = [
        ("base", f"{base.registry}/{base.repository}:{base.tag}"),
        ("answered", base.answered_by),
    ]
    for name, platform in base.platforms.items():
        rows.append((name, platform.digest))

        holds = ", ".join(f"{key} {value}" for key, value in lock.facts(name).items())
        if holds:
            rows.append(("  holds", holds))
        added = _count_added(platform)
        if added:
            rows.append(("  adds", added))

        sources = ", ".join(
            f"{entry.name} {entry.version}" for entry in platform.source_distributions()
        )
        if sources and platform.pip_build:
            tools = ", ".join(f"{entry.name} {entry.version}" for entry in platform.pip_build)
            rows.append(("  builds", f"{sources} (from source, with {tools})"))
        elif sources:
            rows.append(("  builds", f"{sources} (from source)"))

    rows += [("source", f"{name} {commit}") for name, commit in lock.sources.items()]
    if lock.unresolved:
        rows.append(("open", f"{', '.join(lock.unresolved)} (resolved in the build)"))
    stand_in = lock.stand_in()
    if stand_in:
        rows.append(("STAND-IN", stand_in))
    return "\n".join([str(path), *(f"  {key:<12} {value}" for key, value in rows)])


def _count_added(platform: LockedPlatform) -> str:
    """Return how many packages the stack adds to its base, as "2 apt, 5 pip"."""
    sets = {"apt": platform.apt, "dnf": platform.dnf, "conda": platform.conda, "pip": platform.pip}
    return ", ".join(f"{len(found)} {kind}" for kind, found in sets.items() if found)


def _find_staleness(file: LockFile) -> Staleness:
    """Return why the lock of FILE is stale, and what it leaves open.

    A lock is also stale where the site requires signed bases, and it does not record a signature.
    """
    from hpcstack.resolve.signed_base import find_missing_signature

    found = file.state()
    lock = file.read()
    missing = find_missing_signature(lock, file.site) if lock else None
    if missing:
        return replace(found, reasons=(*found.reasons, missing.reason))
    return found


def _check_lock(session: Session, name: str, as_json: bool) -> None:
    """Say whether the lock of NAME is current. Raise AnswerIsNo, or end with 1, if it is not."""
    from hpcstack.core.errors import AnswerIsNo
    from hpcstack.lock.file import LockFile

    recipe = session.recipe(name)
    full = recipe.stack.full_name
    file = LockFile(recipe, session.site)
    path = file.path
    found = _find_staleness(file)

    if found.reasons and not as_json:
        state = "is stale" if path.exists() else "is not there"
        what = f"the lock of {full} ({path}) {state}: {'; '.join(found.reasons)}"
        raise AnswerIsNo(what, f"hpcstack lock {full}", page="write-a-recipe")

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
