"""When the users of a version are warned, from when on it is refused, and what they are told."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError
from hpcstack.releases import inputs
from hpcstack.releases.ledger import Dates, split_name

if TYPE_CHECKING:
    from hpcstack.releases.ledger import Ledger
    from hpcstack.releases.tree import Tree

NOTICE_DAYS = 30  # of the default life cycle that sites use: DoD HPCMP, FY05-01


@dataclass(frozen=True)
class Retirement:
    """What was asked for, in the words of the command line; days as YYYY-MM-DD, empty for the
    default.
    """

    warn: str = ""
    refuse: str = ""
    now: bool = False
    cancel: bool = False
    successor: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        others = self.refuse or self.warn
        if (self.now and others) or (self.cancel and (self.now or others or self.successor)):
            raise InputError(
                "--now and --cancel take only a --reason", "hpcstack retire NAME/VERSION --now"
            )


def retirement_dates(asked: Retirement, ledger: Ledger, version: str, tree: Tree) -> Dates:
    """The dates of VERSION after it was retired as ASKED. InputError for what makes no sense."""
    if asked.cancel:
        return Dates()
    today, old = inputs.stamp_today(), ledger.dates.get(version, Dates())
    begin = (
        inputs.parse_day(asked.warn, "--warn") if asked.warn else min(old.deprecate or today, today)
    )
    later = (date.fromisoformat(max(begin, today)) + timedelta(days=NOTICE_DAYS)).isoformat()
    end = later
    if asked.now:
        end = today
    elif asked.refuse:
        end = inputs.parse_day(asked.refuse, "--on")
    if end < begin:
        raise InputError(
            f"it would be refused on {end}, before anybody is warned on {begin}",
            "--warn DAY --on DAY",
        )
    if asked.successor:
        _check_successor(asked.successor, ledger.name, version, tree)
    successor, reason = asked.successor or old.successor, asked.reason or old.reason
    return Dates(
        begin, end, inputs.parse_successor(successor), inputs.parse_one_line(reason, "--reason")
    )


def _check_successor(successor: str, name: str, version: str, tree: Tree) -> None:
    """InputError for a SUCCESSOR that users could not load."""
    one, rest = split_name(inputs.parse_successor(successor), tree.names())
    ledger = tree.ledger(one)
    meant = rest or ledger.default.rpartition("-r")[0]
    if (one, meant) == (name, version):
        raise InputError(
            f"--successor: {successor} is what is retired", "name what users should load instead"
        )
    if meant not in ledger.aliases or ledger.dates.get(meant, Dates()).refuses(
        inputs.stamp_today()
    ):
        known = ", ".join(f"{one}/{each}" for each in ledger.aliases) or "nothing"
        raise InputError(
            f"--successor: {successor} cannot be loaded; of {one} there is {known}",
            f"hpcstack status {one}",
        )
