"""The verbs on what is published: each is a function from one ledger to the next, with an event in
its history. Pure.

An event keeps what it changed as it was before, so that `undo_changes` can take back any of them.
`find_harm` says what a change would take from users; whether that is meant is the caller's to ask.
"""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from hpcstack.core.errors import InputError
from hpcstack.releases.ledger import Dates, Entry, Event, Ledger, State, make_version_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def publish_entry(ledger: Ledger, entry: Entry, dates: Dates, event: Event) -> Ledger:
    """ENTRY is there. It takes its version's alias, but a testing release does not take it from a
    production one.

    DATES are the recipe's: they count as long as no verb has said others.
    """
    meant = ledger.aliased(entry.version)
    takes = entry.channel == "production" or meant is None or meant.channel != "production"
    aliases = {**ledger.aliases, entry.version: entry.release} if takes else dict(ledger.aliases)
    entries = (*(one for one in ledger.entries if one.release != entry.release), entry)
    known = dict(ledger.dates)
    if known.get(entry.version, Dates(origin="recipe")).origin == "recipe":
        known[entry.version] = dates
    return _done(
        ledger, replace(ledger, entries=entries, aliases=aliases, dates=known), event, entry.version
    )


def roll_back_version(ledger: Ledger, version: str, to: str, event: Event) -> Ledger:
    """VERSION means an earlier release again (TO, or the one before), and what it meant is
    withdrawn.
    """
    now = ledger.aliased(version)
    if not now:
        raise InputError(
            f"{ledger.name}/{version} means no release now", f"hpcstack status {ledger.name}"
        )
    target = ledger.entry(to) if to else _before(ledger, now)
    if target.version != version:
        raise InputError(
            f"{target.release} is not a release of {version}", f"hpcstack history {ledger.name}"
        )
    if target.release == now.release:
        raise InputError(f"{ledger.name}/{version} already means {target.release}")
    if target.state in ("retired", "removed", "gone"):
        raise InputError(
            f"{ledger.name}/{target.release} is {target.state}", f"hpcstack history {ledger.name}"
        )
    entries = tuple(replace(one, state=_after(one, now, target)) for one in ledger.entries)
    after = replace(ledger, entries=entries, aliases={**ledger.aliases, version: target.release})
    return _done(ledger, after, replace(event, release=target.release), version)


def _after(one: Entry, now: Entry, target: Entry) -> State:
    """The state of ONE when NOW makes way for TARGET: an older one.

    NOW goes, and what else is the same image.
    """
    if one.release == target.release:
        return "live"
    goes = one.release == now.release or (
        one.version == now.version and one.sha256 == now.sha256 != target.sha256
    )
    return "withdrawn" if goes and one.state == "live" and now.number > target.number else one.state


def _before(ledger: Ledger, now: Entry) -> Entry:
    """What VERSION goes back to: an older release of another image, of production rather than
    testing.

    Where there is none, a testing release of the same image: what was promoted by mistake is in
    testing again.
    """
    older = [
        one for one in ledger.of(now.version) if one.state == "live" and one.number < now.number
    ]
    others = [one for one in older if one.sha256 != now.sha256]
    for fitting in (
        [one for one in others if one.channel == "production"],
        [one for one in others if one.channel == "testing"],
        [one for one in older if one.channel == "testing" and now.channel == "production"],
    ):
        if fitting:
            return fitting[-1]
    raise InputError(
        (
            f"{ledger.name}/{now.version} has no release to go back to: {now.release} is the only "
            f"one that is live"
        ),
        (
            f"hpcstack retire {ledger.name}/{now.version} takes it away; hpcstack undo "
            f"{ledger.name} takes a change back"
        ),
    )


def retire_version(ledger: Ledger, version: str, dates: Dates, today: str, event: Event) -> Ledger:
    """VERSION has DATES; where they are past, its releases are retired and no alias names them,
    else they are back.
    """
    if version not in ledger.aliases and not ledger.of(version):
        raise InputError(
            f"{ledger.name}/{version} is not published", f"hpcstack status {ledger.name}"
        )
    after = replace(ledger, dates={**ledger.dates, version: dates})
    event = replace(event, reason="; ".join(filter(None, (_days(dates), event.reason))))
    if dates.refuses(today):
        aliases = {name: release for name, release in ledger.aliases.items() if name != version}
        after = replace(after, entries=_all(ledger, version, "live", "retired"), aliases=aliases)
    elif version not in ledger.aliases:  # it had been retired, and comes back
        back = replace(after, entries=_all(ledger, version, "retired", "live"))
        after = replace(back, aliases=_meaning(back, version))
    return _done(ledger, after, event, version)


def _days(dates: Dates) -> str:
    days = ((dates.deprecate, "warned"), (dates.remove, "refused"))
    return ", ".join(f"{what} from {day}" for day, what in days if day)


def _all(ledger: Ledger, version: str, before: State, after: State) -> tuple[Entry, ...]:
    """The entries, those of VERSION in state BEFORE being in AFTER."""
    return tuple(
        replace(one, state=after) if one.version == version and one.state == before else one
        for one in ledger.entries
    )


def _meaning(ledger: Ledger, version: str) -> dict[str, str]:
    """The aliases, VERSION meaning its newest release in production, else its newest, else nothing."""
    aliases = {name: release for name, release in ledger.aliases.items() if name != version}
    live = [one for one in ledger.of(version) if one.state == "live"]
    proven = [one for one in live if one.channel == "production"]
    return {**aliases, version: (proven or live)[-1].release} if live else aliases


def choose_default(ledger: Ledger, version: str, event: Event) -> Ledger:
    """VERSION is the default until another is chosen; an empty VERSION means the newest again."""
    if version and version not in ledger.aliases:
        known = ", ".join(ledger.aliases) or "none"
        raise InputError(
            f"{ledger.name}/{version} is not published (there are: {known})", "hpcstack status"
        )
    after = _done(ledger, replace(ledger, pinned=version), event, version)
    if not after.default or (version and after.default != after.aliases[version]):
        what = (
            f"{ledger.name}/{version} is retired"
            if version
            else f"no version of {ledger.name!r} can be loaded"
        )
        raise InputError(what, f"hpcstack history {ledger.name}")
    return after


def remove_releases(ledger: Ledger, releases: Iterable[str], event: Event) -> Ledger:
    """RELEASES have no modulefiles any more; their files stay until `purge_releases`, so that this
    can be undone.
    """
    going = [ledger.entry(one) for one in releases]
    if over := [one.release for one in going if one.state in ("removed", "gone")]:
        raise InputError(
            f"{ledger.name}/{over[0]} is removed already", f"hpcstack history {ledger.name}"
        )
    names = {one.release for one in going}
    entries = tuple(
        replace(one, state="removed") if one.release in names else one for one in ledger.entries
    )
    after = replace(ledger, entries=entries)
    versions = list(dict.fromkeys(one.version for one in going))
    for version in versions:
        if ledger.aliases.get(version) in names:
            after = replace(after, aliases=_meaning(after, version))
    said = replace(event, release=", ".join(one.release for one in going))
    return _done(ledger, after, said, versions[0] if len(versions) == 1 else ", ".join(versions))


def purge_releases(ledger: Ledger, releases: Iterable[str], event: Event) -> Ledger:
    """The files of RELEASES, which nobody can load any more or which were withdrawn, are gone for
    good.
    """
    names = {ledger.entry(one).release for one in releases}
    if not [one for one in ledger.entries if one.release in names and one.state != "gone"]:
        raise InputError(f"there is nothing of {ledger.name!r} to take", "hpcstack gc --dry-run")
    if live := [
        one.release for one in ledger.entries if one.release in names and one.state == "live"
    ]:
        raise InputError(
            f"{ledger.name}/{live[0]} is live", f"hpcstack remove {ledger.name}/{live[0]}"
        )
    entries = tuple(
        replace(one, state="gone") if one.release in names else one for one in ledger.entries
    )
    versions = ", ".join(
        dict.fromkeys(one.version for one in ledger.entries if one.release in names)
    )
    said = replace(
        event, release=", ".join(one.release for one in ledger.entries if one.release in names)
    )
    return _done(ledger, replace(ledger, entries=entries), said, versions)


def last_change(ledger: Ledger) -> Event:
    """The newest event that changed what users see: gc does not. InputError where there is none."""
    for event in reversed(ledger.events):
        if event.verb != "gc":
            return event
    raise InputError(
        f"nothing was ever changed under {ledger.name!r}", f"hpcstack history {ledger.name}"
    )


def changes_since(ledger: Ledger, number: int) -> list[Event]:
    """The events from the NUMBERth on (the first is 1, as `history` shows them), the newest first,
    but for gc's.

    InputError where there is none of that number.
    """
    if not 1 <= number <= len(ledger.events):
        raise InputError(
            f"{ledger.name!r} has no event {number}", f"hpcstack history {ledger.name} numbers them"
        )
    found = [event for event in reversed(ledger.events[number - 1 :]) if event.verb != "gc"]
    if not found:
        what = f"from event {number} on only gc has changed {ledger.name!r}"
        raise InputError(what, f"hpcstack history {ledger.name}")
    return found


def number_after(ledger: Ledger, moment: str) -> int:
    """The number of the first event after MOMENT, a time of UTC.

    InputError where nothing has changed since.
    """
    for number, event in enumerate(ledger.events, 1):
        if event.at > moment and event.verb != "gc":
            return number
    raise InputError(
        f"nothing of {ledger.name!r} was changed after {moment}", f"hpcstack history {ledger.name}"
    )


def undo_changes(ledger: Ledger, event: Event, since: int = 0) -> Ledger:
    """The last change is taken back, or all from event SINCE on: one new event, which can be taken
    back in its turn.
    """
    taken = changes_since(ledger, since) if since else [last_change(ledger)]
    states: dict[str, Any] = {}
    aliases: dict[str, Any] = {}
    dates_before: dict[str, Any] = {}
    pinned = ledger.pinned
    for one in taken:  # the newest first: what the oldest changed is what counts in the end
        if one.before is None:
            raise InputError(
                f"the {one.verb} of {ledger.name}/{one.subject} at {one.at} was made by an older "
                f"hpcstack, which "
                "did not write down what was before",
                f"hpcstack history {ledger.name}; hpcstack rollback, default or retire",
            )
        states |= one.before.get("states", {})
        aliases |= one.before.get("aliases", {})
        dates_before |= one.before.get("dates", {})
        pinned = one.before.get("pinned", pinned)
    if gone := [
        one.release for one in ledger.entries if one.release in states and one.state == "gone"
    ]:
        raise InputError(
            f"{ledger.name}/{gone[0]} cannot come back: gc has taken its files",
            f"hpcstack publish {ledger.name}-VERSION",
        )
    entries = tuple(
        replace(one, state=states[one.release]) if one.release in states else one
        for one in ledger.entries
    )
    known = {version: asdict(dates) for version, dates in ledger.dates.items()}
    dates = {version: Dates(**one) for version, one in _restored(known, dates_before).items()}
    after = replace(
        ledger,
        entries=entries,
        aliases=_restored(ledger.aliases, aliases),
        dates=dates,
        pinned=pinned,
    )
    last = taken[0]
    said = f"takes back: {last.verb} of {last.at}"
    if len(taken) > 1:
        said = (
            f"takes back all since event {since}: {', '.join(one.verb for one in reversed(taken))}"
        )
    subjects = list(dict.fromkeys(one.release for one in reversed(taken) if one.release))
    versions = list(dict.fromkeys(one.version for one in reversed(taken) if one.version))
    event = replace(event, release=", ".join(subjects), reason=event.reason or said)
    return _done(ledger, after, event, ", ".join(versions))


def _restored(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """NOW with the values of BEFORE; what is None there was not there."""
    return {key: value for key, value in {**now, **before}.items() if value is not None}


def find_harm(before: Ledger, after: Ledger, today: str) -> list[str]:
    """What users would lose: a version in production that no longer is, a default that is not
    proven.
    """
    out = []
    for version in before.aliases:
        if _proven(before, version, today) and not _proven(after, version, today):
            meant = after.aliased(version)
            refused = after.dates.get(version, Dates()).refuses(today)
            if meant is None or refused:
                change = "would be gone"
            else:
                change = f"would mean {meant.release}, which is in {meant.channel}"
            out.append(f"{before.name}/{version} is in production and {change}")
    old, new = (one.default and one.entry(one.default) for one in (before, after))
    if old and old.channel == "production" and (not new or new.channel != "production"):
        what = f"{new.release}, which is in testing" if new else "nothing"
        out.append(
            f"`module load {before.name}` means {old.release}, which is in production, and "
            f"would mean {what}"
        )
    day = refused_default(after, today)
    others = [
        one
        for one in after.aliases
        if _proven(after, one, today) and not after.dates.get(one, Dates()).remove
    ]
    if day and others and not refused_default(before, today):
        out.append(
            f"`module load {before.name}` means {after.default}, which is refused from {day} on: "
            f"first "
            f"hpcstack default {before.name}/{max(others, key=make_version_key)}"
        )
    return out


def refused_default(ledger: Ledger, today: str) -> str:
    """The day from which the default is refused, where that is still to come; else empty."""
    dates = ledger.dates.get(ledger.default.rpartition("-r")[0], Dates())
    return dates.remove if ledger.default and dates.remove > today else ""


def _proven(ledger: Ledger, version: str, today: str) -> bool:
    """Whether VERSION means a release in production that loads."""
    meant = ledger.aliased(version)
    over = ledger.dates.get(version, Dates()).refuses(today)
    return bool(meant and meant.channel == "production" and meant.state == "live" and not over)


def list_going(before: Ledger, after: Ledger) -> list[Entry]:
    """The releases that AFTER has no modulefile for, and BEFORE has."""
    hidden = ("removed", "gone")
    states = {one.release: one.state for one in after.entries}
    return [
        one
        for one in before.entries
        if one.state not in hidden and states.get(one.release) in hidden
    ]


def list_coming(before: Ledger, after: Ledger) -> list[Entry]:
    """The releases that were removed and come back."""
    states = {one.release: one.state for one in before.entries}
    return [
        one
        for one in after.entries
        if one.state not in ("removed", "gone") and states.get(one.release) == "removed"
    ]


def used_by(ledger: Ledger, entry: Entry, users: Iterable[tuple[str, str]]) -> list[str]:
    """Who of USERS, (who, all that it says), names ENTRY: its release, its image, or a version that
    means it.
    """
    words = [entry.release]
    words += [version for version, release in ledger.aliases.items() if release == entry.release]
    if ledger.default == entry.release:
        words.append("default")
    names = "|".join(f"{re.escape(ledger.name)}[/:-]{re.escape(word)}" for word in words)
    pattern = re.compile(rf"(?<![\w.+-])(?:{names})(?![\w.+-])|{re.escape(entry.key)}")
    return [who for who, said in users if pattern.search(said)]


def describe_changes(before: Ledger, after: Ledger) -> list[str]:
    """What AFTER has otherwise than BEFORE, a line each, the most important first."""
    name, out = before.name, []
    for version in sorted({*before.aliases, *after.aliases}, key=make_version_key):
        if change := _change(*(_meant(one, version) for one in (before, after))):
            out.append(f"{name}/{version}: {change}")
    if change := _change(before.default, after.default):
        out.append(f"module load {name}: {change}")
    if before.pinned != after.pinned:
        pinned = (
            f"{after.pinned} until another is chosen"
            if after.pinned
            else "the newest in production"
        )
        out.append(f"the default is {pinned}")
    states = {one.release: one.state for one in before.entries}
    for one in after.entries:
        if one.state != states.get(one.release, "live"):
            out.append(f"{name}/{one.release}: {states.get(one.release, 'new')} -> {one.state}")
        elif one.release not in states:
            out.append(f"{name}/{one.release}: new, in {one.channel}")
    for version in sorted({*before.dates, *after.dates}, key=make_version_key):
        old, new = (_days(one.dates.get(version, Dates())) for one in (before, after))
        if old != new:
            out.append(f"{name}/{version}: {old or 'no dates'} -> {new or 'no dates'}")
    return out


def _meant(ledger: Ledger, version: str) -> str:
    meant = ledger.aliased(version)
    return f"{meant.release} ({meant.channel})" if meant else ""


def _done(before: Ledger, after: Ledger, event: Event, version: str) -> Ledger:
    """AFTER with its default settled and EVENT, which knows what was before, in its history."""
    states = {one.release: one.state for one in before.entries}
    entries = tuple(
        replace(one, since=event.at) if one.state != states.get(one.release, one.state) else one
        for one in after.entries
    )
    after = replace(after, entries=entries)
    after = replace(after, default=_default(after, event.at[:10]))
    said = replace(
        event,
        alias=_change(before.aliases.get(version, ""), after.aliases.get(version, "")),
        default=_change(before.default, after.default),
        version=version or after.default.rpartition("-r")[0] or before.default.rpartition("-r")[0],
        before=_what_was(before, after),
    )
    return replace(after, events=(*before.events, said))


def _what_was(before: Ledger, after: Ledger) -> dict[str, Any]:
    """What AFTER changed, as it was in BEFORE; what was not there is None, and a release that is
    new was withdrawn.
    """
    states = {one.release: one.state for one in before.entries}
    dates = [
        {version: asdict(one) for version, one in ledger.dates.items()}
        for ledger in (before, after)
    ]
    changed = {
        "aliases": _differing(before.aliases, after.aliases),
        "dates": _differing(*dates),
        "states": {
            one.release: states.get(one.release, "withdrawn")
            for one in after.entries
            if one.state != states.get(one.release)
        },
    }
    pinned = {"pinned": before.pinned} if before.pinned != after.pinned else {}
    return {**{key: value for key, value in changed.items() if value}, **pinned}


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return {key: before.get(key) for key in keys}


def _change(old: str, new: str) -> str:
    return f"{old or 'nothing'} -> {new or 'nothing'}" if old != new else ""


def _default(ledger: Ledger, today: str) -> str:
    """The pinned version, else the newest in production, else the newest; one that is refused by
    now is none.
    """
    good = {
        version: release
        for version, release in ledger.aliases.items()
        if not ledger.dates.get(version, Dates()).refuses(today)
    }
    if ledger.pinned in good:
        return good[ledger.pinned]
    proven = [version for version in good if ledger.entry(good[version]).channel == "production"]
    newest = max(proven or good, key=make_version_key, default="")
    return good.get(newest, "")
