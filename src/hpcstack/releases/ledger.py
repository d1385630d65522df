"""What is published under one name: releases, channels, aliases, the default, dates and the
history. Pure.

A release `24.11-r2` never changes. What moves is which release the version `24.11` means, and which
one is loaded where no version is named. releases/changes.py has the verbs: each is a function from
one ledger to the next. releases/ledger_format.py reads and writes it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from hpcstack.core.errors import InputError

FORMAT = "hpcstack/modules/v1"
CHANNELS = ("testing", "production")
# removed: no modulefile any more, its files wait for gc; gone: gc has taken them
State = Literal["live", "withdrawn", "retired", "removed", "gone"]


@dataclass(frozen=True)
class Entry:
    """One release: its version, its image, how it got here, and what was known of it then."""

    release: str
    version: str
    channel: str
    key: str
    sha256: str
    made: str
    by: str
    # sha256 of what its modulefile says, without its number: the same image is not released twice
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
    """From when the users of a version are warned, and from when it is refused: days of UTC,
    `2027-01-31`.
    """

    deprecate: str = ""
    remove: str = ""
    successor: str = ""
    reason: str = ""
    origin: str = "retire"  # or "recipe": what a verb has said, a recipe does not change

    def refuses(self, today: str) -> bool:
        return bool(self.remove) and today >= self.remove


@dataclass(frozen=True)
class Event:
    """One thing that was done: `alias` and `default` say from what to what."""

    at: str
    by: str
    verb: str
    release: str
    alias: str = ""
    default: str = ""
    reason: str = ""
    version: str = ""
    before: dict[str, Any] | None = (
        None  # what it changed, as it was: see releases/changes.py; older ones have none
    )

    @property
    def releases(self) -> tuple[str, ...]:
        """Each of the releases that it was about: the record has them in one text, separated by `,
        `.
        """
        return tuple(self.release.split(", ")) if self.release else ()

    @property
    def versions(self) -> tuple[str, ...]:
        """Each of the versions that it was about, as `releases`."""
        return tuple(self.version.split(", ")) if self.version else ()

    @property
    def subject(self) -> str:
        """The release or the version that it was about."""
        return self.release or self.version


@dataclass(frozen=True)
class Ledger:
    """All of one name, e.g.

    `pytorch`. `aliases` is {version: release}; `pinned` a version that stays the default.
    """

    name: str
    entries: tuple[Entry, ...] = ()
    aliases: dict[str, str] = field(default_factory=dict)
    default: str = ""
    pinned: str = ""
    dates: dict[str, Dates] = field(default_factory=dict)
    events: tuple[Event, ...] = ()

    def entry(self, release: str) -> Entry:
        """The entry of RELEASE. InputError where there is none."""
        for one in self.entries:
            if one.release == release:
                return one
        known = ", ".join(one.release for one in self.entries) or "none"
        raise InputError(
            f"no release {self.name}/{release} was published (there are: {known})",
            "hpcstack status",
        )

    def of(self, version: str) -> list[Entry]:
        """The releases of VERSION, the oldest first."""
        return sorted(
            (one for one in self.entries if one.version == version), key=lambda one: one.number
        )

    def aliased(self, version: str) -> Entry | None:
        """What VERSION means now."""
        release = self.aliases.get(version)
        return self.entry(release) if release else None

    def next(self, version: str, taken: list[str]) -> str:
        """The release that VERSION would get next; TAKEN are others that nobody may have again."""
        names = [*(one.release for one in self.of(version)), *taken]
        numbers = [
            int(match[1])
            for name in names
            if (match := re.fullmatch(re.escape(version) + r"-r(\d+)", name))
        ]
        return f"{version}-r{max(numbers, default=0) + 1}"

    def hidden(self) -> list[str]:
        """What `avail` does not show: all but what a version means and what is newer and waits to
        be promoted.
        """
        out = []
        for one in self.entries:
            if one.state == "gone":
                continue
            meant = self.aliased(one.version)
            shown = one.state == "live" and (
                (meant and one.release == meant.release) or (meant and one.number > meant.number)
            )
            if not shown:
                out.append(one.release)
        return out


def make_version_key(version: str) -> list[tuple[int, str]]:
    """The key by which versions are sorted: numbers as numbers, words before them."""
    return [
        (int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"[._+-]", version)
    ]


def split_name(name: str, known: list[str]) -> tuple[str, str]:
    """(`pytorch`, `24.11`) of `pytorch-24.11` or `pytorch/24.11`, (`pytorch`, ``) of a name alone.

    KNOWN are the names that are published. InputError where none fits.
    """
    for one in sorted(known, key=len, reverse=True):
        if name == one:
            return one, ""
        if name.startswith((f"{one}-", f"{one}/")):
            return one, name[len(one) + 1 :]
    from hpcstack.core.errors import did_you_mean

    raise InputError(
        f"nothing is published as {name!r}{did_you_mean(name, known)}", "hpcstack status"
    )
