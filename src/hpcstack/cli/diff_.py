"""`hpcstack diff`.

Tested in tests/unit/cli/test_locks.py.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcstack.cli.session import Session, answer, complete_stacks, format_table, json_option, say

if TYPE_CHECKING:
    from hpcstack.lock.model import Lock
    from hpcstack.recipe.catalog import Recipe


@click.command("diff")
@click.argument(
    "before",
    metavar="STACK|LOCK",
    shell_complete=lambda ctx, _param, start: complete_stacks(ctx, start),
)
@click.argument(
    "after",
    metavar="[STACK|LOCK]",
    default="",
    shell_complete=lambda ctx, _param, start: complete_stacks(ctx, start),
)
@click.option(
    "--git",
    "revision",
    metavar="REVISION",
    default="",
    help="Compare the stack's lock with the one that git has in REVISION.",
)
@click.option(
    "--markdown", "as_markdown", is_flag=True, help="Print a Markdown table for a pull request."
)
@click.option("--check", is_flag=True, help="Exit 1 if anything differs.")
@json_option
@click.pass_obj
def command(
    session: Session,
    before: str,
    after: str,
    revision: str,
    as_markdown: bool,
    check: bool,
    as_json: bool,
) -> None:
    """Show what differs between two stacks or two locks.

    The base image and its contents, packages, sources and specs are compared. A lock may be any
    file, also a pipe: `diff old.lock pytorch-25.10`, `diff <(git show v1:x.lock.json) x`. `diff
    STACK --git HEAD~1` compares the stack's committed lock with its present one, without the specs.
    """
    from hpcstack.core.errors import InputError
    from hpcstack.lock import diff

    if bool(after) == bool(revision):
        tip = "hpcstack diff STACK STACK, or hpcstack diff STACK --git HEAD~1"
        raise InputError(
            "two things are compared: two locks or stacks, or one and its --git REVISION",
            tip,
            page="new-ngc-month",
        )

    if revision:
        low = _read_committed(session, before, revision)
        high = _read_side(session, before)
        before, after = f"{before} at {revision}", before
    else:
        low = _read_side(session, before)
        high = _read_side(session, after)

    # each side is (recipe, lock), of which either may be None
    if low[1] is None or high[1] is None:
        if low[0] is None or high[0] is None:
            unlocked = after if high[1] is None else before
            raise InputError(f"{unlocked} has no lock to compare", f"hpcstack lock {unlocked}")
        unlocked = after if high[1] is None else before
        say(f"only the specs are compared: {unlocked} is not locked")

    changes = diff.diff_locks(low[1], high[1]) if low[1] and high[1] else []
    if low[0] and high[0]:
        changes += diff.diff_specs(_dump_spec(low[0]), _dump_spec(high[0]))

    def text() -> str:
        if as_markdown:
            return diff.format_changes(changes, before, after)
        if not changes:
            return "no difference"
        rows = [
            (change.section, change.name, change.before or "-", change.after or "-")
            for change in changes
        ]
        return format_table(rows, ("", "", before, after))

    answer([asdict(change) for change in changes], as_json, text)
    if check and changes:
        raise click.exceptions.Exit(1)


def _dump_spec(recipe: Recipe) -> dict[str, object]:
    return recipe.stack.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def _read_side(session: Session, name: str) -> tuple[Recipe | None, Lock | None]:
    """Return (recipe, lock) of NAME.

    A lock's file has no recipe. A stack that is not locked has no lock.
    """
    from hpcstack.lock.file import LockFile

    if _is_file_of_a_lock(name):
        return None, _read_lock_file(name)

    recipe = session.recipe(name)
    return recipe, LockFile(recipe, session.site).read()


def _find_lock_path(session: Session, name: str) -> Path:
    from hpcstack.lock.file import LockFile

    if _is_file_of_a_lock(name):
        return Path(name).absolute()
    return LockFile(session.recipe(name), session.site).path


def _is_file_of_a_lock(name: str) -> bool:
    """Return whether NAME is a file other than a recipe.

    A shell's <(...) counts, although it is a pipe: /dev/fd/63.
    """
    path = Path(name)
    is_there = path.exists() and not path.is_dir()
    return name.endswith(".json") or (is_there and path.suffix not in (".yaml", ".yml"))


def _read_lock_file(name: str) -> Lock:
    """Read the lock in NAME, which may be a pipe. Raise InputError where it is no lock."""
    from hpcstack.core.errors import InputError
    from hpcstack.lock import model

    try:
        with Path(name).open("rb") as file:
            content = file.read(model.MAX_LOCK + 1)
    except OSError as error:
        raise InputError(
            f"{name}: {error.strerror}", "name a lock, or a stack: hpcstack list"
        ) from None

    if len(content) > model.MAX_LOCK:
        raise InputError(
            f"{name} is larger than a lock can be ({model.MAX_LOCK >> 20} MiB)", "name a lock"
        )
    return model.parse_lock(content, name).lock


def _read_committed(
    session: Session, name: str, revision: str
) -> tuple[Recipe | None, Lock | None]:
    """Read a lock as it was committed in REVISION. NAME is a stack or a lock's file.

    Raise InputError where git has none. There is no recipe: it is always None.
    """
    from hpcstack.core.errors import InputError
    from hpcstack.core.git import find_repository, read_committed_file
    from hpcstack.lock import model

    path = _find_lock_path(session, name)
    log = f"git -C {path.parent} log -- {path.name}"
    repository = find_repository(path.parent.resolve())
    if repository is None:
        raise InputError(f"git has no {path} of {revision}: it is in no repository of yours", log)
    done = read_committed_file(repository, path, revision, session.runner)
    if done.status:
        said = done.tail[-1] if done.tail else f"git ended with {done.status}"
        raise InputError(f"git has no {path} of {revision}: {said}", log)

    return None, model.parse_lock(done.stdout.encode(), f"{path.name} of {revision}").lock
