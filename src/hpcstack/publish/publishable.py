"""Which stacks may be published, and what publishing returns. Pure.

Tested in tests/integration/test_publishing.py.
"""

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
    """A release that publishing made or found, how it is loaded, and how it was checked."""

    release: str  # pytorch/24.11-r1
    alias: str  # pytorch/24.11
    channel: str
    takes_alias: bool  # whether the alias means this release now
    default: str
    load: str  # what a user types
    modulepath: str
    modulefile: str
    image: str
    sha256: str
    new: bool  # False where this image was a release already
    checked: str  # what the load test said, in words


def choose_dates(stack: Stack) -> Dates:
    """Return the dates that the recipe's `lifecycle` names.

    A successor without a date is left out: nothing is to be replaced yet.
    """
    cycle = stack.lifecycle
    ends = cycle.deprecate or cycle.remove
    successor = module_name(cycle.successor) if ends else ""
    return Dates(str(cycle.deprecate or ""), str(cycle.remove or ""), successor, origin="recipe")


def check_publishable(ledger: Ledger, stack: Stack) -> None:
    """Raise InputError where STACK cannot be published under LEDGER's name.

    See `_check_name` and `_check_not_retired`.
    """
    _check_name(stack)
    _check_not_retired(ledger, stack)


def _check_name(stack: Stack) -> None:
    """Raise InputError for a name or version that means something else in the module tree."""
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


def _check_not_retired(ledger: Ledger, stack: Stack) -> None:
    """Raise InputError where the version is retired by now: its new module would refuse to load.

    Dates that `hpcstack retire` has set win over those of the recipe.
    """
    version = stack.release_version
    dates = choose_dates(stack)
    where = "the recipe's `lifecycle`"
    if ledger.dates.get(version, dates).origin != "recipe":
        dates = ledger.dates[version]
        where = f"hpcstack retire {stack.name}/{version} --cancel"
    if dates.refuses(stamp_today()):
        raise InputError(
            f"{stack.name}/{version} has been retired since {dates.remove}",
            where,
            page="retire-a-release",
        )
