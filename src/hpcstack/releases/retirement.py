"""Works out from when users of a version are warned, from when it is refused, and what they are
told.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_release_verbs.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError
from hpcstack.releases import inputs
from hpcstack.releases.ledger import Dates
from hpcstack.releases.published import read_published, refuse_unpublished

if TYPE_CHECKING:
    from hpcstack.releases.ledger import Ledger
    from hpcstack.releases.tree import Tree

# Days from the warning to the refusal: the default life cycle that sites use (DoD HPCMP, FY05-01).
NOTICE_DAYS = 30


@dataclass(frozen=True)
class Retirement:
    """What `hpcstack retire` was asked for; days are YYYY-MM-DD, and empty for the default.

    InputError for options that exclude each other.
    """

    warn: str = ""
    refuse: str = ""
    now: bool = False
    cancel: bool = False
    successor: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        names_day = bool(self.refuse or self.warn)
        now_is_wrong = self.now and names_day
        cancel_is_wrong = self.cancel and (self.now or names_day or bool(self.successor))
        if now_is_wrong or cancel_is_wrong:
            raise InputError(
                "--now and --cancel take only a --reason",
                "hpcstack retire NAME/VERSION --now",
                page="retire-a-release",
            )


def choose_retirement_dates(asked: Retirement, ledger: Ledger, version: str, tree: Tree) -> Dates:
    """Return the dates of VERSION after it is retired as ASKED.

    By default users are warned from today on, or from an earlier day that was set before, and the
    version is refused `NOTICE_DAYS` later. InputError where the days or the successor make no
    sense.
    """
    if asked.cancel:
        return Dates()

    today = inputs.stamp_today()
    old = ledger.dates.get(version, Dates())
    begin = min(old.deprecate or today, today)
    if asked.warn:
        begin = inputs.parse_day(asked.warn, "--warn")
    if asked.now:
        end = today
    elif asked.refuse:
        end = inputs.parse_day(asked.refuse, "--on")
    else:
        # Notice counts from today where the warning began in the past.
        end_of_notice = date.fromisoformat(max(begin, today)) + timedelta(days=NOTICE_DAYS)
        end = end_of_notice.isoformat()
    if end < begin:
        raise InputError(
            f"it would be refused on {end}, before anybody is warned on {begin}",
            "--warn DAY --on DAY",
            page="retire-a-release",
        )

    if asked.successor:
        _check_successor(asked.successor, ledger.name, version, tree)
    successor = inputs.parse_successor(asked.successor or old.successor)
    reason = inputs.parse_one_line(asked.reason or old.reason, "--reason")
    return Dates(begin, end, successor, reason)


def _check_successor(successor: str, name: str, version: str, tree: Tree) -> None:
    """Raise InputError where users could not load SUCCESSOR, or it is what is retired."""
    found = read_published(inputs.parse_successor(successor), tree)
    if found is None:
        raise refuse_unpublished(successor, tree)
    ledger, one = found.ledger, found.ledger.name
    meant = found.rest or found.default_version
    if (one, meant) == (name, version):
        raise InputError(
            f"--successor: {successor} is what is retired",
            "name what users should load instead",
            page="retire-a-release",
        )
    is_refused = ledger.dates.get(meant, Dates()).refuses(inputs.stamp_today())
    if meant not in ledger.aliases or is_refused:
        known = ", ".join(f"{one}/{each}" for each in ledger.aliases) or "nothing"
        raise InputError(
            f"--successor: {successor} cannot be loaded; of {one} there is {known}",
            f"hpcstack status {one}",
            page="retire-a-release",
        )
