"""The verbs that change a ledger: each is a function from one ledger to the next. Pure.

Each adds an event to the history. An event keeps what it changed as it was before, so that
`undo_changes` can take back any of them. `find_harm` says what a change would take from users; the
caller asks whether that is meant.
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
    """Add ENTRY, and let its version mean it.

    A testing release does not take the alias from a production release. DATES are the recipe's:
    they count until `hpcstack retire` sets others.
    """
    aliases = dict(ledger.aliases)
    meant = ledger.aliased(entry.version)
    if entry.channel == "production" or meant is None or meant.channel != "production":
        aliases[entry.version] = entry.release

    entries = (*(one for one in ledger.entries if one.release != entry.release), entry)
    known = dict(ledger.dates)
    if known.get(entry.version, Dates(origin="recipe")).origin == "recipe":
        known[entry.version] = dates
    after = replace(ledger, entries=entries, aliases=aliases, dates=known)
    return _record_event(ledger, after, event, entry.version)


def roll_back_version(ledger: Ledger, version: str, to: str, event: Event) -> Ledger:
    """Point VERSION back at an earlier release, and withdraw the one that it means now.

    The earlier release is TO, or where that is empty the one that `_choose_earlier` finds.
    """
    now = ledger.aliased(version)
    if not now:
        raise InputError(
            f"{ledger.name}/{version} means no release now", f"hpcstack status {ledger.name}"
        )

    target = ledger.entry(to) if to else _choose_earlier(ledger, now)
    if target.version != version:
        raise InputError(
            f"{target.release} is not a release of {version}",
            f"hpcstack history {ledger.name}",
            page="roll-back",
        )
    if target.release == now.release:
        raise InputError(f"{ledger.name}/{version} already means {target.release}")
    if target.state in ("retired", "removed", "gone"):
        raise InputError(
            f"{ledger.name}/{target.release} is {target.state}", f"hpcstack history {ledger.name}"
        )

    entries = tuple(
        replace(one, state=_state_after_rollback(one, now, target)) for one in ledger.entries
    )
    after = replace(ledger, entries=entries, aliases={**ledger.aliases, version: target.release})
    return _record_event(ledger, after, replace(event, release=target.release), version)


def _state_after_rollback(one: Entry, now: Entry, target: Entry) -> State:
    """Return the state of ONE, of any version, after the version of NOW went to TARGET.

    Where TARGET is older than NOW, NOW is withdrawn, and so are the other live releases of the same
    image: what is wrong with the image is wrong with all of them.
    """
    if one.release == target.release:
        return "live"
    if one.state != "live" or now.number <= target.number:
        return one.state
    shares_image = one.version == now.version and one.sha256 == now.sha256
    shares_blame = shares_image and now.sha256 != target.sha256
    return "withdrawn" if one.release == now.release or shares_blame else one.state


def _choose_earlier(ledger: Ledger, now: Entry) -> Entry:
    """Return the release that the version of NOW goes back to.

    It is the newest older release of another image in production, else in testing. Where there is
    none, it is a testing release of the same image: that takes back a promotion made by mistake.
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
        f"{ledger.name}/{now.version} has no release to go back to: {now.release} is the only "
        f"one that is live",
        f"hpcstack retire {ledger.name}/{now.version} takes it out of use; hpcstack undo "
        f"{ledger.name} takes back the last change",
        page="roll-back",
    )


def retire_version(ledger: Ledger, version: str, dates: Dates, today: str, event: Event) -> Ledger:
    """Give VERSION these DATES.

    Where they refuse it from TODAY or an earlier day on, its live releases are retired and its
    alias goes. Where they do not and it had been retired, both come back.
    """
    if version not in ledger.aliases and not ledger.of(version):
        raise InputError(
            f"{ledger.name}/{version} is not published", f"hpcstack status {ledger.name}"
        )

    after = replace(ledger, dates={**ledger.dates, version: dates})
    reasons = (describe_days(dates), event.reason)
    event = replace(event, reason="; ".join(reason for reason in reasons if reason))
    if dates.refuses(today):
        aliases = {name: release for name, release in ledger.aliases.items() if name != version}
        entries = _change_states(ledger, version, "live", "retired")
        after = replace(after, entries=entries, aliases=aliases)
    elif version not in ledger.aliases:  # it had been retired, and comes back
        after = replace(after, entries=_change_states(ledger, version, "retired", "live"))
        after = replace(after, aliases=_choose_aliases(after, version))
    return _record_event(ledger, after, event, version)


def describe_days(dates: Dates) -> str:
    """Return DATES in words: `warned from 2027-01-01, refused from 2027-01-31`; empty for none."""
    days = ((dates.deprecate, "warned"), (dates.remove, "refused"))
    return ", ".join(f"{what} from {day}" for day, what in days if day)


def _change_states(ledger: Ledger, version: str, before: State, after: State) -> tuple[Entry, ...]:
    """Return the entries, with those of VERSION in state BEFORE changed to AFTER."""
    return tuple(
        replace(one, state=after) if one.version == version and one.state == before else one
        for one in ledger.entries
    )


def _choose_aliases(ledger: Ledger, version: str) -> dict[str, str]:
    """Return the aliases, with that of VERSION chosen anew among its live releases.

    It is the newest in production, else the newest. Without a live release VERSION has no alias.
    """
    aliases = {name: release for name, release in ledger.aliases.items() if name != version}
    live = [one for one in ledger.of(version) if one.state == "live"]
    proven = [one for one in live if one.channel == "production"]
    if live:
        aliases[version] = (proven or live)[-1].release
    return aliases


def choose_default(ledger: Ledger, version: str, event: Event) -> Ledger:
    """Make VERSION the default until another is chosen.

    Where it is empty, the newest version is the default again. InputError where the version, or
    without one all of them, cannot be loaded.
    """
    if version and version not in ledger.aliases:
        known = ", ".join(ledger.aliases) or "none"
        raise InputError(
            f"{ledger.name}/{version} is not published (there are: {known})", "hpcstack status"
        )
    after = _record_event(ledger, replace(ledger, pinned=version), event, version)
    if version and after.default != after.aliases[version]:
        raise InputError(
            f"{ledger.name}/{version} is retired",
            f"hpcstack history {ledger.name}",
            page="retire-a-release",
        )
    if not after.default:
        raise InputError(
            f"no version of {ledger.name!r} can be loaded", f"hpcstack history {ledger.name}"
        )
    return after


def remove_releases(ledger: Ledger, releases: Iterable[str], event: Event) -> Ledger:
    """Remove RELEASES: their modulefiles go.

    Their other files stay until `purge_releases`, so that this can be undone.
    """
    going = [ledger.entry(one) for one in releases]
    over = [one.release for one in going if one.state in ("removed", "gone")]
    if over:
        raise InputError(
            f"{ledger.name}/{over[0]} is removed already",
            f"hpcstack history {ledger.name}",
            page="retire-a-release",
        )

    names = {one.release for one in going}
    entries = tuple(
        replace(one, state="removed") if one.release in names else one for one in ledger.entries
    )
    after = replace(ledger, entries=entries)
    versions = list(dict.fromkeys(one.version for one in going))
    for version in versions:
        if ledger.aliases.get(version) in names:
            after = replace(after, aliases=_choose_aliases(after, version))
    event = replace(event, release=", ".join(one.release for one in going))
    return _record_event(ledger, after, event, ", ".join(versions))


def purge_releases(ledger: Ledger, releases: Iterable[str], event: Event) -> Ledger:
    """Write down that all files of RELEASES are gone for good. gc does so.

    InputError where one of them is live.
    """
    names = {ledger.entry(one).release for one in releases}
    going = [one for one in ledger.entries if one.release in names]
    if all(one.state == "gone" for one in going):
        raise InputError(
            f"gc has nothing of {ledger.name!r} to remove",
            "hpcstack gc --dry-run",
            page="free-disk-space",
        )
    live = [one.release for one in going if one.state == "live"]
    if live:
        raise InputError(
            f"{ledger.name}/{live[0]} is live",
            f"hpcstack remove {ledger.name}/{live[0]}",
            page="free-disk-space",
        )

    entries = tuple(
        replace(one, state="gone") if one.release in names else one for one in ledger.entries
    )
    event = replace(event, release=", ".join(one.release for one in going))
    versions = ", ".join(dict.fromkeys(one.version for one in going))
    return _record_event(ledger, replace(ledger, entries=entries), event, versions)


def last_change(ledger: Ledger) -> Event:
    """Return the newest event that changed what users see, which gc's do not.

    InputError where there is none.
    """
    for event in reversed(ledger.events):
        if event.verb != "gc":
            return event
    raise InputError(
        f"nothing was ever changed under {ledger.name!r}",
        f"hpcstack history {ledger.name}",
        page="roll-back",
    )


def list_changes_since(ledger: Ledger, number: int) -> list[Event]:
    """Return the events from NUMBER on, the newest first, without those of gc.

    Events are numbered from 1, as `history` shows them. InputError where NUMBER is none of them.
    """
    if not 1 <= number <= len(ledger.events):
        raise InputError(
            f"{ledger.name!r} has no event {number}",
            f"hpcstack history {ledger.name} numbers them",
            page="roll-back",
        )
    found = [event for event in reversed(ledger.events[number - 1 :]) if event.verb != "gc"]
    if not found:
        what = f"from event {number} on only gc has changed {ledger.name!r}"
        raise InputError(what, f"hpcstack history {ledger.name}", page="roll-back")
    return found


def find_number_after(ledger: Ledger, moment: str) -> int:
    """Return the number of the first event after MOMENT that is not gc's.

    Events are numbered from 1, gc's included. MOMENT is in UTC, as ISO 8601 text like an event's
    `at`: the two are compared as texts. InputError where nothing has changed since.
    """
    for number, event in enumerate(ledger.events, 1):
        if event.at > moment and event.verb != "gc":
            return number
    raise InputError(
        f"nothing of {ledger.name!r} was changed after {moment}",
        f"hpcstack history {ledger.name}",
        page="roll-back",
    )


def undo_changes(ledger: Ledger, event: Event, since: int = 0) -> Ledger:
    """Take back the last change, or all changes from event SINCE on.

    That is one new event, which can be taken back in its turn. InputError where an event does not
    say what was before it, or gc has taken the files of a release that would come back.
    """
    taken = list_changes_since(ledger, since) if since else [last_change(ledger)]
    states: dict[str, Any] = {}
    aliases: dict[str, Any] = {}
    dates_before: dict[str, Any] = {}
    pinned = ledger.pinned
    # The newest event comes first, so that what was before the oldest one overwrites the rest.
    for one in taken:
        if one.before is None:
            raise InputError(
                f"the {one.verb} of {ledger.name}/{one.subject} at {one.at} was made by an older "
                f"hpcstack, which did not record what it changed",
                f"hpcstack history {ledger.name}; hpcstack rollback, default or retire",
                page="roll-back",
            )
        states |= one.before.get("states", {})
        aliases |= one.before.get("aliases", {})
        dates_before |= one.before.get("dates", {})
        pinned = one.before.get("pinned", pinned)

    gone = [one.release for one in ledger.entries if one.release in states and one.state == "gone"]
    if gone:
        raise InputError(
            f"{ledger.name}/{gone[0]} cannot come back: gc has taken its files",
            f"hpcstack publish {ledger.name}-VERSION",
            page="roll-back",
        )

    entries = tuple(
        replace(one, state=states[one.release]) if one.release in states else one
        for one in ledger.entries
    )
    known = {version: asdict(dates) for version, dates in ledger.dates.items()}
    dates = {version: Dates(**one) for version, one in _restore(known, dates_before).items()}
    after = replace(
        ledger,
        entries=entries,
        aliases=_restore(ledger.aliases, aliases),
        dates=dates,
        pinned=pinned,
    )

    oldest_first = list(reversed(taken))
    reason = f"takes back: {taken[0].verb} of {taken[0].at}"
    if len(taken) > 1:
        verbs = ", ".join(one.verb for one in oldest_first)
        reason = f"takes back all since event {since}: {verbs}"
    subjects = dict.fromkeys(one.release for one in oldest_first if one.release)
    versions = dict.fromkeys(one.version for one in oldest_first if one.version)
    event = replace(event, release=", ".join(subjects), reason=event.reason or reason)
    return _record_event(ledger, after, event, ", ".join(versions))


def _restore(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return NOW with the values of BEFORE. What is None in BEFORE was not there, and goes."""
    return {key: value for key, value in {**now, **before}.items() if value is not None}


def find_harm(before: Ledger, after: Ledger, today: str) -> list[str]:
    """Return what users would lose by the change from BEFORE to AFTER, a line each.

    That is a version in production that no longer is, a default in production that no longer is,
    and a default that will be refused although another version could take its place.
    """
    out = []
    for version in before.aliases:
        if _is_proven(before, version, today) and not _is_proven(after, version, today):
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

    day = find_refused_default(after, today)
    others = [
        one
        for one in after.aliases
        if _is_proven(after, one, today) and not after.dates.get(one, Dates()).remove
    ]
    if day and others and not find_refused_default(before, today):
        newest = max(others, key=make_version_key)
        out.append(
            f"`module load {before.name}` means {after.default}, which is refused from {day} on: "
            f"first hpcstack default {before.name}/{newest}"
        )
    return out


def find_unapproved(before: Ledger, after: Ledger) -> list[str]:
    """Return what users would get after the change that is in testing and newer than what they have
    in production.

    Back to an older release is no matter: it was what they had.
    """
    moves = [
        (f"{after.name}/{version}", before.aliases.get(version, ""), release)
        for version, release in after.aliases.items()
    ]
    moves.append((after.name, before.default, after.default))
    out = []
    for what, old, new in moves:
        if not old or not new or old == new:
            continue
        was, becomes = before.entry(old), after.entry(new)
        is_older = was.version == becomes.version and becomes.number < was.number
        if was.channel == "production" and becomes.channel == "testing" and not is_older:
            out.append(f"{what} would mean {after.name}/{new}, which is in testing")
    return out


def find_refused_default(ledger: Ledger, today: str) -> str:
    """Return the day from which the default will be refused; empty where no such day is to come."""
    dates = ledger.dates.get(ledger.default.rpartition("-r")[0], Dates())
    return dates.remove if ledger.default and dates.remove > today else ""


def _is_proven(ledger: Ledger, version: str, today: str) -> bool:
    """Whether VERSION means a release in production that loads."""
    meant = ledger.aliased(version)
    over = ledger.dates.get(version, Dates()).refuses(today)
    return bool(meant and meant.channel == "production" and meant.state == "live" and not over)


def list_going(before: Ledger, after: Ledger) -> list[Entry]:
    """Return the releases that have modulefiles in BEFORE and none in AFTER."""
    without_modulefiles = ("removed", "gone")
    states = {one.release: one.state for one in after.entries}
    return [
        one
        for one in before.entries
        if one.state not in without_modulefiles and states.get(one.release) in without_modulefiles
    ]


def list_coming(before: Ledger, after: Ledger) -> list[Entry]:
    """Return the releases that are removed in BEFORE and come back in AFTER."""
    states = {one.release: one.state for one in before.entries}
    return [
        one
        for one in after.entries
        if one.state not in ("removed", "gone") and states.get(one.release) == "removed"
    ]


def used_by(ledger: Ledger, entry: Entry, users: Iterable[tuple[str, str]]) -> list[str]:
    """Return who of USERS, (who, text) each, uses ENTRY.

    That is who names its release, its image's key, or a version that means it now.
    """
    words = [entry.release]
    words += [version for version, release in ledger.aliases.items() if release == entry.release]
    if ledger.default == entry.release:
        words.append("default")
    # NAME/WORD, NAME-WORD or NAME:WORD, where it is not a part of a longer word: a user of
    # pytorch/24.11-r10 does not use pytorch/24.11-r1.
    names = "|".join(f"{re.escape(ledger.name)}[/:-]{re.escape(word)}" for word in words)
    pattern = re.compile(rf"(?<![\w.+-])(?:{names})(?![\w.+-])|{re.escape(entry.key)}")
    return [who for who, text in users if pattern.search(text)]


def describe_changes(before: Ledger, after: Ledger) -> list[str]:
    """Return what differs between BEFORE and AFTER, a line each, the most important first."""
    name = before.name
    out = []
    for version in sorted({*before.aliases, *after.aliases}, key=make_version_key):
        change = _format_change(_describe_alias(before, version), _describe_alias(after, version))
        if change:
            out.append(f"{name}/{version}: {change}")

    change = _format_change(before.default, after.default)
    if change:
        out.append(f"module load {name}: {change}")
    if before.pinned != after.pinned:
        default = "the newest in production"
        if after.pinned:
            default = f"{after.pinned} until another is chosen"
        out.append(f"the default is {default}")

    states = {one.release: one.state for one in before.entries}
    for one in after.entries:
        if one.state != states.get(one.release, "live"):
            out.append(f"{name}/{one.release}: {states.get(one.release, 'new')} -> {one.state}")
        elif one.release not in states:
            out.append(f"{name}/{one.release}: new, in {one.channel}")

    for version in sorted({*before.dates, *after.dates}, key=make_version_key):
        old, new = (describe_days(one.dates.get(version, Dates())) for one in (before, after))
        if old != new:
            out.append(f"{name}/{version}: {old or 'no dates'} -> {new or 'no dates'}")
    return out


def _describe_alias(ledger: Ledger, version: str) -> str:
    """Return the release that VERSION means, and its channel; empty where it means none."""
    meant = ledger.aliased(version)
    return f"{meant.release} ({meant.channel})" if meant else ""


def _record_event(before: Ledger, after: Ledger, event: Event, version: str) -> Ledger:
    """Return AFTER with its default chosen, and with EVENT in its history.

    VERSION is what the event was about; several are separated by `, `, and then the event names no
    alias. Without one it is the version of the default. The event keeps, as `before`, the values
    that it has changed.
    """
    states = {one.release: one.state for one in before.entries}
    entries = tuple(
        replace(one, since=event.at) if one.state != states.get(one.release, one.state) else one
        for one in after.entries
    )
    after = replace(after, entries=entries)
    after = replace(after, default=_choose_default(after, event.at[:10]))
    event = replace(
        event,
        alias=_format_change(before.aliases.get(version, ""), after.aliases.get(version, "")),
        default=_format_change(before.default, after.default),
        version=version or after.default.rpartition("-r")[0] or before.default.rpartition("-r")[0],
        before=_keep_what_was(before, after),
    )
    return replace(after, events=(*before.events, event))


def _keep_what_was(before: Ledger, after: Ledger) -> dict[str, Any]:
    """Return what differs in AFTER, as it was in BEFORE. Ledgers on disk hold it.

    What was not there is None. A release that is new counts as withdrawn before: to take back its
    publishing is to withdraw it.
    """
    states_before = {one.release: one.state for one in before.entries}
    states = {
        one.release: states_before.get(one.release, "withdrawn")
        for one in after.entries
        if one.state != states_before.get(one.release)
    }
    dates = [
        {version: asdict(one) for version, one in ledger.dates.items()}
        for ledger in (before, after)
    ]
    changed: dict[str, Any] = {
        "aliases": _differing(before.aliases, after.aliases),
        "dates": _differing(*dates),
        "states": states,
    }
    out = {key: value for key, value in changed.items() if value}
    if before.pinned != after.pinned:
        out["pinned"] = before.pinned
    return out


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return {key: its value in BEFORE} of what differs; None for what is not in BEFORE."""
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return {key: before.get(key) for key in keys}


def _format_change(old: str, new: str) -> str:
    """Return `OLD -> NEW`; empty where they are the same."""
    return f"{old or 'nothing'} -> {new or 'nothing'}" if old != new else ""


def _choose_default(ledger: Ledger, today: str) -> str:
    """Return the release that is the default TODAY; empty where there is none.

    It is that of the pinned version, else of the newest version in production, else of the newest.
    A version that is refused by now is none of them.
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
