"""`hpcstack diff`."""

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
    help="Compare the stack's lock with REVISION's.",
)
@click.option("--markdown", "as_markdown", is_flag=True, help="A table for a pull request.")
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
    """What differs between two stacks, or two locks: base, what it holds, packages, sources, spec.

    A lock is any file, whatever its name: `diff old.lock pytorch-25.10`, `diff <(git show
    v1:x.lock.json) x`. `diff STACK --git HEAD~1` compares the stack's lock as it was committed then
    with what it is now; specs are not compared then.
    """
    from hpcstack.core.errors import InputError
    from hpcstack.lock import diff

    if bool(after) == bool(revision):
        tip = "hpcstack diff STACK STACK, or hpcstack diff STACK --git HEAD~1"
        raise InputError(
            "two things are compared: two locks or stacks, or one and its --git REVISION", tip
        )
    if revision:
        low, high = _committed(session, before, revision), _side(session, before)
        before, after = f"{before} at {revision}", before
    else:
        low, high = _side(session, before), _side(session, after)
    if low[1] is None or high[1] is None:
        if low[0] is None or high[0] is None:
            unlocked = after if high[1] is None else before
            raise InputError(f"{unlocked} has no lock to compare", f"hpcstack lock {unlocked}")
        say(f"only the specs are compared: {after if high[1] is None else before} is not locked")
    changes = diff.diff_locks(low[1], high[1]) if low[1] and high[1] else []
    if low[0] and high[0]:
        changes += diff.diff_specs(_spec(low[0]), _spec(high[0]))

    def text() -> str:
        if as_markdown:
            return diff.format_changes(changes, before, after)
        rows = [(c.section, c.name, c.before or "-", c.after or "-") for c in changes]
        return format_table(rows, ("", "", before, after)) if rows else "no difference"

    answer([asdict(change) for change in changes], as_json, text)
    if check and changes:
        raise click.exceptions.Exit(1)


def _spec(recipe: Recipe) -> dict[str, object]:
    return recipe.stack.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def _side(session: Session, name: str) -> tuple[Recipe | None, Lock | None]:
    """The recipe that NAME is (None for a lock's file), and its lock (None if there is none)."""
    from hpcstack.lock.file import LockFile

    if _is_file_of_a_lock(name):
        return None, _read_any(name)
    recipe = session.recipe(name)
    return recipe, LockFile(recipe, session.site).read()


def _is_file_of_a_lock(name: str) -> bool:
    """Whether NAME is a file and no recipe. A shell's <(...) is a pipe, /dev/fd/63."""
    path = Path(name)
    is_there = path.exists() and not path.is_dir()
    return name.endswith(".json") or (is_there and path.suffix not in (".yaml", ".yml"))


def _read_any(name: str) -> Lock:
    """The lock in NAME, which may be a pipe. InputError where it is none."""
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


def _committed(session: Session, name: str, revision: str) -> tuple[Recipe | None, Lock | None]:
    """The lock of the stack, or in the file, NAME as git has it in REVISION.

    InputError where git has none.
    """
    from hpcstack.core.errors import InputError
    from hpcstack.lock import model
    from hpcstack.lock.file import LockFile

    path = (
        Path(name).absolute()
        if _is_file_of_a_lock(name)
        else LockFile(session.recipe(name), session.site).path
    )
    command = [
        "git",
        "-C",
        str(path.parent),
        "show",
        "--end-of-options",
        f"{revision}:./{path.name}",
    ]
    done = session.runner.output(command)
    if done.status:
        said = done.tail[-1] if done.tail else f"git ended with {done.status}"
        raise InputError(
            f"git has no {path} of {revision}: {said}", f"git -C {path.parent} log -- {path.name}"
        )
    return None, model.parse_lock(done.stdout.encode(), f"{path.name} of {revision}").lock
