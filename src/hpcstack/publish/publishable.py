"""What may be published, and what publishing answers. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError
from hpcstack.releases.inputs import module_name, stamp_today
from hpcstack.releases.layout import GATE
from hpcstack.releases.ledger import Dates, Ledger

if TYPE_CHECKING:
    from hpcstack.recipe.model import Stack


@dataclass(frozen=True)
class Published:
    """What publishing made or found: `pytorch/24.11-r1`, how it is loaded, and how it was checked."""

    release: str
    alias: str
    channel: str
    takes_alias: bool
    default: str
    load: str
    modulepath: str
    modulefile: str
    image: str
    sha256: str
    new: bool
    checked: str


def dates_of(stack: Stack) -> Dates:
    """What the recipe's lifecycle says."""
    cycle = stack.lifecycle
    goes = cycle.deprecate or cycle.remove
    return Dates(
        str(cycle.deprecate or ""),
        str(cycle.remove or ""),
        module_name(cycle.successor) if goes else "",
        origin="recipe",
    )


def check_publishable(ledger: Ledger, stack: Stack) -> None:
    """InputError for what cannot be published: see `_named` and `_not_over`."""
    _named(stack)
    _not_over(ledger, stack)


def _named(stack: Stack) -> None:
    """InputError for a name or a version that would be taken for something else in the module tree."""
    if stack.name == GATE:
        raise InputError(
            f"a stack named {GATE!r} cannot be published: its modules would lie among the gateways",
            "`name` in the recipe",
        )
    if re.search(r"-r[0-9]+$|^default$", stack.release_version):
        raise InputError(
            f"{stack.full_name}: a version like -rN or `default` would be taken for a release",
            "`version` or `variant` in the recipe",
        )


def _not_over(ledger: Ledger, stack: Stack) -> None:
    """InputError where the version's day has come: what is published would be refused."""
    version, dates = stack.release_version, dates_of(stack)
    where = "the recipe's `lifecycle`"
    if ledger.dates.get(version, dates).origin != "recipe":
        dates, where = ledger.dates[version], f"hpcstack retire {stack.name}/{version} --cancel"
    if dates.refuses(stamp_today()):
        raise InputError(f"{stack.name}/{version} is retired since {dates.remove}", where)
