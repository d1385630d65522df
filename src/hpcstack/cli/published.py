"""What the verbs on published stacks share: the argument, its completion, and what it means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.session import Session, say

if TYPE_CHECKING:
    from hpcstack.modules.acts import Publisher
    from hpcstack.modules.ledger import Ledger


def complete(ctx: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    """Every published name and version that begins with START."""
    from hpcstack.errors import HpcstackError
    from hpcstack.modules.tree import Tree

    session = ctx.find_root().obj or Session("", ())
    try:
        tree = Tree(session.site.module_root)
        words = [
            word for name in tree.names() for word in (name, *(f"{name}/{one}" for one in tree.ledger(name).aliases))
        ]
    except (HpcstackError, OSError):  # completion never shows an error
        return []
    return [word for word in words if word.startswith(start)]


published_argument = click.argument("name", metavar="NAME[/VERSION[-rN]]", shell_complete=complete)


def optional(function: Any) -> Any:
    return click.argument("name", metavar="[NAME[/VERSION]]", default="", shell_complete=complete)(function)


def publisher(session: Session) -> Publisher:
    from hpcstack.modules.acts import Publisher

    return Publisher(session.site, session.store, session.runner, say)


def split(session: Session, name: str) -> tuple[Ledger, str, str]:
    """(ledger, version, release) of `pytorch/24.11`, `pytorch-24.11` or `pytorch/24.11-r2`.

    The version of a name alone is that of its default; release is empty unless it was named. InputError for others.
    """
    from hpcstack.errors import InputError
    from hpcstack.modules.ledger import split as parts
    from hpcstack.modules.tree import Tree

    tree = Tree(session.site.module_root)
    one, rest = parts(name, tree.names())
    ledger = tree.ledger(one)
    if any(entry.release == rest for entry in ledger.entries):
        return ledger, ledger.entry(rest).version, rest
    if not rest:
        newest = ledger.default or (ledger.entries[-1].release if ledger.entries else "")
        return ledger, newest.rpartition("-r")[0], ""
    if rest not in {entry.version for entry in ledger.entries}:
        known = ", ".join(dict.fromkeys(entry.version for entry in ledger.entries))
        raise InputError(f"{one}/{rest} is not published (there are: {known})", f"hpcstack status {one}")
    return ledger, rest, ""
