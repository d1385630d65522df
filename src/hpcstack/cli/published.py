"""What the verbs on published stacks share.

These are the argument that names what is published, the options of a change, and how a change is
made and shown.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_release_verbs.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from hpcstack.cli.session import Session, answer, say

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcstack.publish.publisher import Publisher
    from hpcstack.releases.ledger import Event, Ledger
    from hpcstack.releases.tree import Tree

F = TypeVar("F", bound="Callable[..., Any]")


def complete_published(ctx: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    """Complete START to every published name and version that begins with it."""
    from hpcstack.core.errors import HpcstackError
    from hpcstack.releases.tree import open_tree

    session = ctx.find_root().obj or Session("", ())
    try:
        tree = open_tree(session.site)
        words = [
            word
            for name in tree.names()
            for word in (name, *(f"{name}/{one}" for one in tree.ledger(name).aliases))
        ]
    except (HpcstackError, OSError):  # completion never shows an error
        return []
    return [word for word in words if word.startswith(start)]


published_argument = click.argument(
    "name", metavar="NAME[/VERSION[-rN]]", shell_complete=complete_published
)

published_arguments = click.argument(
    "names",
    metavar="NAME[/VERSION[-rN]]...",
    nargs=-1,
    required=True,
    shell_complete=complete_published,
)


def add_optional_name(function: F) -> F:
    """Add the argument of verbs that also work on everything that is published."""
    return click.argument(
        "name", metavar="[NAME[/VERSION]]", default="", shell_complete=complete_published
    )(function)


REASON = click.option(
    "--reason", default="", metavar="WHY", help="Record this reason in the history."
)
FORCE = click.option(
    "--force",
    is_flag=True,
    help="Do it even if users lose what is in production. Needs a --reason.",
)
NO_SLURM = click.option(
    "--no-slurm", is_flag=True, help="Do not ask Slurm whether jobs use what is removed."
)
DRY_RUN = click.option("--dry-run", is_flag=True, help="Only show what would change.")


def add_changing_options(function: F) -> F:
    """Add the options that every verb has which changes what users load."""
    return REASON(FORCE(DRY_RUN(function)))


def make_change(
    session: Session,
    name: str,
    verb: str,
    act: Callable[[Ledger, Event], Ledger],
    *,
    reason: str,
    force: bool,
    dry_run: bool,
    slurm: bool = True,
) -> tuple[Ledger, list[str]]:
    """Change NAME's ledger by ACT. Return the new ledger, and a line for each thing that changed.

    With DRY_RUN nothing is written. VERB is recorded in the history, with REASON. Raise InputError
    for FORCE without a REASON.
    """
    from hpcstack.core.errors import InputError
    from hpcstack.releases.changes import describe_changes
    from hpcstack.releases.inputs import parse_one_line

    reason = parse_one_line(reason, "--reason")
    if force and not reason:
        raise InputError(
            "--force needs a reason: it is recorded in the history",
            f"hpcstack {verb} as before, with --force --reason WHY",
        )

    publisher = make_publisher(session, slurm=slurm)
    before = publisher.tree.ledger(name)
    if dry_run:
        after = publisher.changed(before, verb, act, reason, force=force)
    else:
        after = publisher.change(name, verb, act, reason, force=force)
    return after, describe_changes(before, after)


def tell_changes(
    document: dict[str, Any], changes: list[str], *, dry_run: bool, as_json: bool, last: str = ""
) -> None:
    """Show CHANGES as text, or DOCUMENT with them as JSON.

    The text ends with the line LAST, unless it was a DRY_RUN.
    """
    lines = ["nothing changes"]
    if changes:
        head = "this would change:" if dry_run else "changed:"
        lines = [head, *(f"  {one}" for one in changes)]
    if last and not dry_run:
        lines.append(last)

    answer({**document, "changes": changes, "dry_run": dry_run}, as_json, lambda: "\n".join(lines))


def make_publisher(session: Session, *, slurm: bool = True) -> Publisher:
    """Return what changes the site's module tree; SLURM says whether it asks for running jobs."""
    from hpcstack.publish.publisher import Publisher

    return Publisher(session.site, session.store, session.runner, say, slurm)


def tree_of(session: Session) -> Tree:
    from hpcstack.releases.tree import open_tree

    return open_tree(session.site)


def split_published(session: Session, name: str) -> tuple[Ledger, str, str]:
    """Return the (ledger, version, release) that NAME means.

    The release is empty unless NAME names one.
    """
    from hpcstack.releases.published import find_version

    return find_version(name, tree_of(session))


def with_version(session: Session, verb: str, name: str) -> tuple[Ledger, str, str]:
    """Return the same for a VERB that must not guess: InputError unless NAME has a version."""
    from hpcstack.releases.published import require_version

    return require_version(verb, name, tree_of(session))
