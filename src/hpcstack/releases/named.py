"""What a name means: `pytorch-24.11`, `pytorch/24.11`, `pytorch/24.11-r2` and `pytorch` are one
thing in every verb.
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
    """STACK is a full name, `pytorch-24.11`; RELEASE, `pytorch/24.11-r2`, is empty where none was
    named.
    """

    stack: str
    release: str = ""


def resolve_name(text: str, tree: Tree, environ: Mapping[str, str]) -> Named:
    """What TEXT means. For nothing it is the loaded module's stack; InputError where none is
    loaded.

    What is not published is taken as it is written, NAME/VERSION as NAME-VERSION.
    """
    loaded = environ.get("HPCSTACK_STACK", "")
    if not text:
        if not loaded:
            raise InputError(
                "which stack? no module of one is loaded",
                "module load NAME/VERSION, or name a stack: hpcstack list",
            )
        return Named(loaded)
    for name in sorted(tree.names(), key=len, reverse=True):
        if text == name:
            return _alone(name, tree.ledger(name), loaded)
        if text.startswith((f"{name}/", f"{name}-")):
            ledger, rest = tree.ledger(name), text[len(name) + 1 :]
            for one in ledger.entries:
                if one.release == rest:
                    return Named(f"{name}-{one.version}", f"{name}/{rest}")
            if any(one.version == rest for one in ledger.entries):
                return Named(f"{name}-{rest}")
    return Named(text.replace("/", "-", 1))


def _alone(name: str, ledger: Ledger, loaded: str) -> Named:
    """NAME without a version: the loaded module's, if it is one of NAME, else the default."""
    if any(loaded == f"{name}-{one.version}" for one in ledger.entries):
        return Named(loaded)
    if not ledger.default:
        raise InputError(f"{name} has no default version", f"hpcstack status {name}")
    return Named(f"{name}-{ledger.entry(ledger.default).version}")
