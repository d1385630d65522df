"""What is published under one name: releases, channels, aliases, the default, dates and the history. Pure.

A release `24.11-r2` never changes. What moves is which release the version `24.11` means, and which one is loaded where
no version is named. Each verb is a function from one ledger to the next.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from hpcstack.errors import InputError, StoreError

FORMAT = "hpcstack/modules/v1"
CHANNELS = ("testing", "production")
State = Literal["live", "withdrawn", "retired"]


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
    shown: str = ""  # sha256 of what its modulefile says, without its number: the same image is not released twice
    tested: dict[str, str] = field(default_factory=dict)
    override: str = ""
    state: State = "live"

    @property
    def number(self) -> int:
        return int(self.release.rpartition("-r")[2])


@dataclass(frozen=True)
class Dates:
    """From when the users of a version are warned, and from when it is refused: days of UTC, `2027-01-31`."""

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


@dataclass(frozen=True)
class Ledger:
    """All of one name, e.g. `pytorch`. `aliases` is {version: release}; `pinned` a version that stays the default."""

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
        raise InputError(f"no release {self.name}/{release} was published (there are: {known})", "hpcstack status")

    def of(self, version: str) -> list[Entry]:
        """The releases of VERSION, the oldest first."""
        return sorted((one for one in self.entries if one.version == version), key=lambda one: one.number)

    def aliased(self, version: str) -> Entry | None:
        """What VERSION means now."""
        release = self.aliases.get(version)
        return self.entry(release) if release else None

    def next(self, version: str, taken: list[str]) -> str:
        """The release that VERSION would get next; TAKEN are others that nobody may have again."""
        names = [*(one.release for one in self.of(version)), *taken]
        numbers = [int(match[1]) for name in names if (match := re.fullmatch(re.escape(version) + r"-r(\d+)", name))]
        return f"{version}-r{max(numbers, default=0) + 1}"

    def hidden(self) -> list[str]:
        """What `avail` does not show: all but what a version means and what is newer and waits to be promoted."""
        out = []
        for one in self.entries:
            meant = self.aliased(one.version)
            shown = one.state == "live" and (
                (meant and one.release == meant.release) or (meant and one.number > meant.number)
            )
            if not shown:
                out.append(one.release)
        return out


def published(ledger: Ledger, entry: Entry, dates: Dates, event: Event) -> Ledger:
    """ENTRY is there. It takes its version's alias, but a testing release does not take it from a production one.

    DATES are the recipe's: they count as long as no verb has said others.
    """
    meant = ledger.aliased(entry.version)
    takes = entry.channel == "production" or meant is None or meant.channel != "production"
    aliases = {**ledger.aliases, entry.version: entry.release} if takes else dict(ledger.aliases)
    entries = (*(one for one in ledger.entries if one.release != entry.release), entry)
    known = dict(ledger.dates)
    if known.get(entry.version, Dates(origin="recipe")).origin == "recipe":
        known[entry.version] = dates
    return _done(ledger, replace(ledger, entries=entries, aliases=aliases, dates=known), event, entry.version)


def rolled_back(ledger: Ledger, version: str, to: str, event: Event) -> Ledger:
    """VERSION means an earlier release again (TO, or the one before), and what it meant is withdrawn."""
    now = ledger.aliased(version)
    if not now:
        raise InputError(f"{ledger.name}/{version} names no release", f"hpcstack status {ledger.name}")
    target = ledger.entry(to) if to else _before(ledger, now)
    if target.version != version:
        raise InputError(f"{target.release} is no release of {version}", f"hpcstack history {ledger.name}")
    if target.release == now.release:
        raise InputError(f"{ledger.name}/{version} means {target.release} already")
    if target.state == "retired":
        raise InputError(f"{ledger.name}/{target.release} is retired", f"hpcstack history {ledger.name}")
    entries = tuple(replace(one, state=_after(one, now, target)) for one in ledger.entries)
    after = replace(ledger, entries=entries, aliases={**ledger.aliases, version: target.release})
    return _done(ledger, after, replace(event, release=target.release), version)


def _after(one: Entry, now: Entry, target: Entry) -> State:
    """The state of ONE when NOW makes way for TARGET: an older one. NOW goes, and what else is the same image."""
    if one.release == target.release:
        return "live"
    goes = one.release == now.release or (one.version == now.version and one.sha256 == now.sha256 != target.sha256)
    return "withdrawn" if goes and one.state == "live" and now.number > target.number else one.state


def _before(ledger: Ledger, now: Entry) -> Entry:
    """What VERSION goes back to: an older release of another image, of production rather than testing.

    Where there is none, a testing release of the same image: what was promoted by mistake is in testing again.
    """
    older = [one for one in ledger.of(now.version) if one.state == "live" and one.number < now.number]
    others = [one for one in older if one.sha256 != now.sha256]
    for fitting in (
        [one for one in others if one.channel == "production"],
        [one for one in others if one.channel == "testing"],
        [one for one in older if one.channel == "testing" and now.channel == "production"],
    ):
        if fitting:
            return fitting[-1]
    raise InputError(
        f"{ledger.name}/{now.version} has no release to go back to: {now.release} is the only one that is live",
        f"hpcstack retire {ledger.name}-{now.version} takes it away",
    )


def retired(ledger: Ledger, version: str, dates: Dates, today: str, event: Event) -> Ledger:
    """VERSION has DATES; where they are past, its releases are retired and no alias names them, else they are back."""
    if version not in ledger.aliases and not ledger.of(version):
        raise InputError(f"{ledger.name}/{version} is not published", f"hpcstack status {ledger.name}")
    after = replace(ledger, dates={**ledger.dates, version: dates})
    event = replace(event, reason="; ".join(filter(None, (_days(dates), event.reason))))
    if dates.refuses(today):
        aliases = {name: release for name, release in ledger.aliases.items() if name != version}
        after = replace(after, entries=_all(ledger, version, "live", "retired"), aliases=aliases)
    elif version not in ledger.aliases:  # it had been retired, and comes back
        back = replace(after, entries=_all(ledger, version, "retired", "live"))
        live = [one for one in back.of(version) if one.state == "live"]
        proven = [one for one in live if one.channel == "production"]
        aliases = {**ledger.aliases, version: (proven or live)[-1].release} if live else dict(ledger.aliases)
        after = replace(back, aliases=aliases)
    return _done(ledger, after, event, version)


def _days(dates: Dates) -> str:
    days = ((dates.deprecate, "warned"), (dates.remove, "refused"))
    return ", ".join(f"{what} from {day}" for day, what in days if day)


def _all(ledger: Ledger, version: str, before: State, after: State) -> tuple[Entry, ...]:
    """The entries, those of VERSION in state BEFORE being in AFTER."""
    return tuple(
        replace(one, state=after) if one.version == version and one.state == before else one for one in ledger.entries
    )


def defaulted(ledger: Ledger, version: str, event: Event) -> Ledger:
    """VERSION is the default until another is chosen; an empty VERSION means the newest again."""
    if version and version not in ledger.aliases:
        known = ", ".join(ledger.aliases) or "none"
        raise InputError(f"{ledger.name}/{version} is not published (there are: {known})", "hpcstack status")
    return _done(ledger, replace(ledger, pinned=version), event, version)


def _done(before: Ledger, after: Ledger, event: Event, version: str) -> Ledger:
    """AFTER with its default settled and EVENT in its history."""
    after = replace(after, default=_default(after, event.at[:10]))
    told = replace(
        event,
        alias=_change(before.aliases.get(version, ""), after.aliases.get(version, "")),
        default=_change(before.default, after.default),
        version=version,
    )
    return replace(after, events=(*before.events, told))


def _change(old: str, new: str) -> str:
    return f"{old or 'nothing'} -> {new or 'nothing'}" if old != new else ""


def _default(ledger: Ledger, today: str) -> str:
    """The pinned version, else the newest in production, else the newest; one that is refused by now is none."""
    good = {
        version: release
        for version, release in ledger.aliases.items()
        if not ledger.dates.get(version, Dates()).refuses(today)
    }
    if ledger.pinned in good:
        return good[ledger.pinned]
    proven = [version for version in good if ledger.entry(good[version]).channel == "production"]
    newest = max(proven or good, key=order, default="")
    return good.get(newest, "")


def order(version: str) -> list[tuple[int, str]]:
    """The key by which versions are sorted: numbers as numbers, words before them."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"[._+-]", version)]


def split(name: str, known: list[str]) -> tuple[str, str]:
    """(`pytorch`, `24.11`) of `pytorch-24.11` or `pytorch/24.11`, (`pytorch`, ``) of a name alone.

    KNOWN are the names that are published. InputError where none fits.
    """
    for one in sorted(known, key=len, reverse=True):
        if name == one:
            return one, ""
        if name.startswith((f"{one}-", f"{one}/")):
            return one, name[len(one) + 1 :]
    from hpcstack.errors import did_you_mean

    raise InputError(f"nothing is published as {name!r}{did_you_mean(name, known)}", "hpcstack status")


def as_json(ledger: Ledger) -> dict[str, Any]:
    return {"format": FORMAT, **asdict(ledger)}


def from_json(document: Any, where: str) -> Ledger:
    """The ledger that WHERE holds. StoreError where it is damaged, or of a newer hpcstack."""
    try:
        if document["format"] != FORMAT:
            raise StoreError(f"{where} is of another hpcstack: {document['format']!r}", "use that version")
        return Ledger(
            name=str(document["name"]),
            entries=tuple(Entry(**_known(Entry, one)) for one in document["entries"]),
            aliases={str(version): str(release) for version, release in document["aliases"].items()},
            default=str(document["default"]),
            pinned=str(document.get("pinned", "")),
            dates={version: Dates(**_known(Dates, one)) for version, one in document["dates"].items()},
            events=tuple(Event(**_known(Event, one)) for one in document["events"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"{where} is damaged: {error!r}", "restore it from a backup of the module tree") from None


def _known(kind: Any, document: dict[str, Any]) -> dict[str, Any]:
    names = {one.name for one in fields(kind)}
    return {name: value for name, value in document.items() if name in names}
