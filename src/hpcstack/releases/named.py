"""Resolves what a user calls a stack: `pytorch-24.11`, `pytorch/24.11`, `pytorch/24.11-r2` or
`pytorch`, in every verb alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.releases.ledger import Ledger
    from hpcstack.releases.tree import Tree


@dataclass(frozen=True)
class Named:
    """What a name means."""

    stack: str  # the full name, pytorch-24.11
    release: str = ""  # pytorch/24.11-r2; empty where no release was named


def resolve_name(text: str, tree: Tree, environ: Mapping[str, str]) -> Named:
    """Return what TEXT means; where TEXT is empty, the stack of the loaded module.

    A name that is not published is taken as it is written, NAME/VERSION as NAME-VERSION.
    InputError where TEXT is empty and no module is loaded.
    """
    loaded = environ.get("HPCSTACK_STACK", "")
    if not text:
        if not loaded:
            raise InputError(
                "which stack? no module of one is loaded",
                "module load NAME/VERSION, or name a stack: hpcstack list",
                page="see-what-a-launch-did",
            )
        return Named(loaded)

    # The longest name first: `pytorch-lightning` is not a version of `pytorch`.
    for name in sorted(tree.names(), key=len, reverse=True):
        if text == name:
            return _resolve_without_version(name, tree.ledger(name), loaded)
        if text.startswith((f"{name}/", f"{name}-")):
            ledger = tree.ledger(name)
            rest = text[len(name) + 1 :]
            for one in ledger.entries:
                if one.release == rest:
                    return Named(f"{name}-{one.version}", f"{name}/{rest}")
            if any(one.version == rest for one in ledger.entries):
                return Named(f"{name}-{rest}")
    return Named(text.replace("/", "-", 1))


def _resolve_without_version(name: str, ledger: Ledger, loaded: str) -> Named:
    """Return the LOADED stack if it is one of NAME, else the default of NAME.

    InputError where it has no default.
    """
    if any(loaded == f"{name}-{one.version}" for one in ledger.entries):
        return Named(loaded)
    if not ledger.default:
        raise InputError(
            f"{name} has no default version", f"hpcstack status {name}", page="promote-a-release"
        )
    return Named(f"{name}-{ledger.entry(ledger.default).version}")
