"""The ledger: all that is published under one name, and its history. Pure.

A release `24.11-r2` never changes. What changes is which release the version `24.11` means, and
which one is loaded where no version is named. releases/changes.py has the verbs: each is a function
from one ledger to the next. releases/ledger_format.py reads and writes ledgers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from hpcstack.core.errors import InputError

FORMAT = "hpcstack/modules/v1"
CHANNELS = ("testing", "production")
# The states of a release:
#   live       can be loaded
#   withdrawn  rolled back or undone: it can still be loaded, but is hidden
#   retired    the day of its version has come: its module refuses to load
#   removed    has no modulefiles any more; its other files wait for gc
#   gone       gc has taken its files
State = Literal["live", "withdrawn", "retired", "removed", "gone"]


@dataclass(frozen=True)
class Entry:
    """One release: its version, its image, who published it, and what was known of it then."""

    release: str  # 24.11-r2
    version: str  # 24.11
    channel: str
    key: str  # of its image
    sha256: str  # of its image
    made: str
    by: str
    # sha256 of its modulefiles and wrappers, without its number: it tells whether a new release
    # would be the same
    shown: str = ""
    tested: dict[str, str] = field(default_factory=dict)
    override: str = ""
    state: State = "live"
    since: str = ""  # when it got its state; empty: when it was made

    @property
    def number(self) -> int:
        return int(self.release.rpartition("-r")[2])


@dataclass(frozen=True)
class Dates:
    """The days from which users of a version are warned, and from which it is refused.

    Days are in UTC, as `2027-01-31`; empty where there is none.
    """

    deprecate: str = ""
    remove: str = ""
    successor: str = ""
    reason: str = ""
    origin: str = "retire"  # or "recipe", whose dates do not replace those that a verb has set

    def refuses(self, today: str) -> bool:
        """Whether the version is refused TODAY."""
        return bool(self.remove) and today >= self.remove


@dataclass(frozen=True)
class Event:
    """One row of the history: what was done, when, by whom and why."""

    at: str
    by: str
    verb: str
    release: str  # several are separated by a comma and a blank, here and in `version`
    alias: str = ""  # what its version meant before and after: `24.11-r1 -> 24.11-r2`
    default: str = ""  # the same of the default
    reason: str = ""
    version: str = ""
    # What it changed, as it was before (releases/changes.py); None in events of older hpcstacks.
    before: dict[str, Any] | None = None

    @property
    def releases(self) -> tuple[str, ...]:
        """The releases that it was about."""
        return tuple(self.release.split(", ")) if self.release else ()

    @property
    def versions(self) -> tuple[str, ...]:
        """The versions that it was about."""
        return tuple(self.version.split(", ")) if self.version else ()

    @property
    def subject(self) -> str:
        """What it was about: its releases, or where it names none its versions."""
        return self.release or self.version


@dataclass(frozen=True)
class Ledger:
    """All that is published under one name, such as `pytorch`."""

    name: str
    entries: tuple[Entry, ...] = ()
    aliases: dict[str, str] = field(default_factory=dict)  # {version: the release that it means}
    default: str = ""  # a release
    pinned: str = ""  # a version that stays the default
    dates: dict[str, Dates] = field(default_factory=dict)  # {version: its dates}
    events: tuple[Event, ...] = ()

    def entry(self, release: str) -> Entry:
        """Return the entry of RELEASE. InputError where there is none."""
        for one in self.entries:
            if one.release == release:
                return one
        known = ", ".join(one.release for one in self.entries) or "none"
        raise InputError(
            f"no release {self.name}/{release} was published (there are: {known})",
            "hpcstack status",
        )

    def of(self, version: str) -> list[Entry]:
        """Return the releases of VERSION, the oldest first."""
        return sorted(
            (one for one in self.entries if one.version == version), key=lambda one: one.number
        )

    def aliased(self, version: str) -> Entry | None:
        """Return the release that VERSION means now; None where it means none."""
        release = self.aliases.get(version)
        return self.entry(release) if release else None

    def next(self, version: str, taken: list[str]) -> str:
        """Return the name of VERSION's next release. TAKEN are further names that are not free."""
        highest = 0
        for name in (*(one.release for one in self.of(version)), *taken):
            match = re.fullmatch(re.escape(version) + r"-r(\d+)", name)
            if match:
                highest = max(highest, int(match[1]))
        return f"{version}-r{highest + 1}"

    def hidden(self) -> list[str]:
        """Return the releases that `module avail` does not show.

        It shows what a version means, and newer live releases, which wait to be promoted.
        """
        out = []
        for one in self.entries:
            if one.state == "gone":
                continue
            meant = self.aliased(one.version)
            is_shown = one.state == "live" and meant is not None and one.number >= meant.number
            if not is_shown:
                out.append(one.release)
        return out


def make_version_key(version: str) -> list[tuple[int, str]]:
    """Return the key by which versions are sorted: numbers as numbers, words before them."""
    return [
        (int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"[._+-]", version)
    ]
