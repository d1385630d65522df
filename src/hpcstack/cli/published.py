"""What the verbs on published stacks share: the argument, what it means, and how a change is asked
for and told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.session import Session, answer, say

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcstack.publish.publisher import Publisher
    from hpcstack.releases.ledger import Event, Ledger
    from hpcstack.releases.tree import Tree


def complete_published(ctx: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    """Every published name and version that begins with START."""
    from hpcstack.core.errors import HpcstackError
    from hpcstack.releases.tree import Tree

    session = ctx.find_root().obj or Session("", ())
    try:
        tree = Tree(session.site.module_tree)
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


def add_optional_name(function: Any) -> Any:
    return click.argument(
        "name", metavar="[NAME[/VERSION]]", default="", shell_complete=complete_published
    )(function)


REASON = click.option(
    "--reason", default="", metavar="WHY", help="The reason, recorded in the history."
)
FORCE = click.option(
    "--force", is_flag=True, help="Even if users lose what is in production; needs a --reason."
)
NO_SLURM = click.option(
    "--no-slurm", is_flag=True, help="Do not ask Slurm which jobs use what is removed."
)
DRY_RUN = click.option("--dry-run", is_flag=True, help="Only show what would change.")


def add_changing_options(function: Any) -> Any:
    """The options of every verb that changes what users load."""
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
    """(NAME's ledger after ACT, what that changed, a line each); with DRY_RUN nothing is written."""
    from hpcstack.core.errors import InputError
    from hpcstack.releases.changes import describe_changes
    from hpcstack.releases.inputs import parse_one_line

    reason = parse_one_line(reason, "--reason")
    if force and not reason:
        raise InputError(
            "--force needs a reason: it is recorded in the history",
            f"hpcstack {verb} as before, with --force --reason WHY",
        )
    acts = make_publisher(session, slurm=slurm)
    before = acts.tree.ledger(name)
    if dry_run:
        after = acts.changed(before, verb, act, reason, force=force)
    else:
        after = acts.change(name, verb, act, reason, force=force)
    return after, describe_changes(before, after)


def tell_changes(
    document: dict[str, Any], changes: list[str], *, dry_run: bool, as_json: bool, last: str = ""
) -> None:
    """DOCUMENT with CHANGES, or as text: the changes, what would be done about them, and a LAST
    line.
    """
    head = "this would change:" if dry_run else "changed:"
    lines = [head, *(f"  {one}" for one in changes)] if changes else ["nothing changes"]
    whole = {**document, "changes": changes, "dry_run": dry_run}
    answer(whole, as_json, lambda: "\n".join([*lines, *([last] if last and not dry_run else [])]))


def make_publisher(session: Session, *, slurm: bool = True) -> Publisher:
    from hpcstack.publish.publisher import Publisher

    return Publisher(session.site, session.store, session.runner, say, slurm)


def tree_of(session: Session) -> Tree:
    from hpcstack.releases.tree import Tree

    return Tree(session.site.module_tree)


def split_published(session: Session, name: str) -> tuple[Ledger, str, str]:
    """(ledger, version, release) that NAME means; release is empty unless it was named."""
    from hpcstack.releases.lookup import find_version

    return find_version(name, tree_of(session))


def with_version(session: Session, verb: str, name: str) -> tuple[Ledger, str, str]:
    """The same, for a VERB that must not guess which version is meant."""
    from hpcstack.releases.lookup import require_version

    return require_version(verb, name, tree_of(session))
