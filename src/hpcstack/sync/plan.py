"""Compares what is declared with what is so, and says what is to be done. Pure.

A plan is made anew after each step, so that only its first step counts; the others are foreseen.
What people have taken away stays away: a release that was rolled back, withdrawn or removed is not
published again, and a version that somebody retired is not brought back, until the declaration, the
recipe or the lock says something new. Nothing is retired before what takes its place is there.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Literal

from hpcstack.releases.changes import describe_days
from hpcstack.releases.ledger import Dates, make_version_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hpcstack.publish.damage import Damage
    from hpcstack.releases.ledger import Entry, Event, Ledger
    from hpcstack.sync.declaration import Declared, VersionDates
    from hpcstack.sync.state import ImageState, NameState, ProofState, StackState

Verb = Literal[
    "repair",
    "rebuild",
    "lock",
    "build",
    "pull",
    "test",
    "publish",
    "promote",
    "default",
    "retire",
    "unretire",
    "prune",
]
# How it is with a version or a name:
#   done    as declared
#   todo    something is to be done
#   waits   it will be as declared by itself: a day comes, nodes are free, a second person acts
#   held    a person has done something that sync does not take back
#   failed  it is not as declared, and somebody must look at it
Status = Literal["done", "todo", "waits", "held", "failed"]
OF_SYNC = "sync "  # how the verbs begin that sync writes into a history


@dataclass(frozen=True)
class SyncStep:
    """One thing to do: VERB to SUBJECT, a stack, NAME/VERSION, NAME/RELEASE or a name."""

    verb: Verb
    subject: str
    why: str
    version: str = ""
    partition: str = ""
    image: str = ""  # its key, where it is there already
    dates: Dates | None = None

    def __str__(self) -> str:
        where = f" on {self.partition or 'the default partition'}" if self.verb == "test" else ""
        return f"{self.verb} {self.subject}{where}: {self.why}"


@dataclass(frozen=True)
class VersionPlan:
    """What is to be done for one version, and how it is with it."""

    version: str
    status: Status
    note: str
    steps: tuple[SyncStep, ...] = ()


@dataclass(frozen=True)
class NamePlan:
    """What is to be done for one name.

    `repairs` of files and `returns` (of versions that sync had retired) come before those of its
    versions, repairs of images and `changes` (default and retirements) after them.
    """

    name: str
    versions: tuple[VersionPlan, ...]
    repairs: tuple[SyncStep, ...] = ()
    returns: tuple[SyncStep, ...] = ()
    changes: tuple[SyncStep, ...] = ()
    notes: tuple[tuple[Status, str], ...] = ()  # about the name itself

    @property
    def steps(self) -> tuple[SyncStep, ...]:
        """All steps, in their order."""
        of_versions = (step for one in self.versions for step in one.steps)
        return (*self.repairs, *self.returns, *of_versions, *self.changes)

    @property
    def status(self) -> Status:
        """How it is with the name as a whole: the worst of its parts."""
        found = {one.status for one in self.versions} | {status for status, _ in self.notes}
        if self.repairs or self.returns or self.changes:
            found.add("todo")
        order: tuple[Status, ...] = ("failed", "held", "todo", "waits", "done")
        return next((status for status in order if status in found), "done")


def choose_versions(declared: Declared, known: Iterable[str]) -> tuple[str, ...]:
    """Return those of the KNOWN versions that are DECLARED, the oldest first."""
    patterns = declared.versions or ("*",)
    fitting = [
        one
        for one in known
        if matches_any(one, patterns) and not matches_any(one, declared.without)
    ]
    ordered = sorted(set(fitting), key=make_version_key)
    if not declared.newest:
        return tuple(ordered)

    months = list(dict.fromkeys(_month_of(one) for one in ordered))
    newest = sorted(months, key=make_version_key)[-declared.newest :]
    return tuple(one for one in ordered if _month_of(one) in newest)


def matches_any(version: str, patterns: Iterable[str]) -> bool:
    """Return whether VERSION matches one of PATTERNS, as in a shell."""
    return any(fnmatch.fnmatchcase(version, pattern) for pattern in patterns)


def _month_of(version: str) -> str:
    """Return what VERSION shares with its variants: 25.10 of 25.10-deepspeed."""
    return version.partition("-")[0]


def plan_name(name: str, declared: Declared, seen: NameState, now: datetime) -> NamePlan:
    """Return what is to be done so that NAME becomes what is DECLARED."""
    ledger, today = seen.ledger, now.date().isoformat()
    notes: list[tuple[Status, str]] = []
    notes += [("failed", f"a recipe cannot be read: {what}") for what in seen.unreadable]
    repairs = _plan_repairs(name, seen, notes)
    # Where nobody knows what is published, publishing would bury what a person can still save.
    if seen.torn or any(one.subject == name for one in seen.lost):
        if seen.torn:
            notes.append(("failed", seen.torn))
        return NamePlan(name, (), repairs, notes=tuple(notes))
    if declared.hold:
        notes.append(("waits", f"held by the declaration: {declared.hold}"))
        return NamePlan(name, (), repairs, notes=tuple(notes))
    if not seen.stacks and not seen.unreadable:
        notes.append(("failed", f"no recipe of {name} has a version that is declared{seen.meant}"))
    unmatched = _find_unmatched(declared, seen)
    notes += [
        ("failed", f"no recipe of {name} matches {pattern!r}, which the declaration names")
        for pattern in unmatched
    ]

    ending = _find_ending(declared, seen, today)
    lasting = [one.version for one in seen.stacks if one.version not in ending]
    versions = [
        plan_version(name, one, declared, seen, now)
        for one in seen.stacks
        if one.version in lasting
    ]
    if any(pattern in declared.without for pattern in unmatched):
        versions = [_stop_version(one) for one in versions]
    ended = [
        VersionPlan(one.version, "done", f"refused since {ending[one.version]}, as declared")
        for one in seen.stacks
        if one.version in ending
    ]

    of = _DeclaredAndSeen(name, declared, seen, lasting, today, notes)
    dates = _plan_dates(of)
    retiring = [step for step in dates if step.verb == "retire"]
    if unmatched:
        # What looks like a typing error may have meant one of these.
        is_dated = {version for version, one in ledger.dates.items() if one.remove}
        is_dated |= {*declared.dates}
        retiring = [step for step in retiring if step.version in is_dated]
    default = _plan_default(of)
    return NamePlan(
        name,
        versions=(*ended, *versions),
        repairs=repairs,
        returns=tuple(step for step in dates if step.verb == "unretire"),
        changes=(*default, *retiring),
        notes=tuple(notes),
    )


def _stop_version(plan: VersionPlan) -> VersionPlan:
    """Return PLAN without steps: the version may be one that a mistyped `without` has meant."""
    if not plan.steps:
        return plan
    why = "it stays as it is until `without` is corrected"
    return VersionPlan(plan.version, "waits", why)


def _find_unmatched(declared: Declared, seen: NameState) -> list[str]:
    """Return the versions and patterns of the declaration that no recipe and no release has."""
    if seen.unreadable:
        return []
    known = {*seen.known, *(one.version for one in seen.ledger.entries)}
    named = [*declared.versions, *declared.without, *declared.dates]
    return [
        pattern
        for pattern in dict.fromkeys(named)
        if not any(matches_any(one, [pattern]) for one in known)
    ]


def _find_ending(declared: Declared, seen: NameState, today: str) -> dict[str, str]:
    """Return {version: its last day} of those that are refused by now.

    The declaration's days come before those of a recipe's `lifecycle`.
    """
    days = {one.version: one.lifecycle.remove for one in seen.stacks}
    days |= {version: dates.refuse or "" for version, dates in declared.dates.items()}
    return {version: day for version, day in days.items() if day and day <= today}


def _plan_repairs(
    name: str, seen: NameState, notes: list[tuple[Status, str]]
) -> tuple[SyncStep, ...]:
    """Return the steps that mend what was damaged; add to NOTES what they cannot mend."""
    notes += [("failed", str(one)) for one in seen.lost]
    found: tuple[tuple[Verb, tuple[Damage, ...]], ...] = (
        ("repair", seen.damage),
        ("rebuild", seen.images),
    )
    out = []
    for verb, damage in found:
        if damage:
            more = f" and {len(damage) - 1} more" if len(damage) > 1 else ""
            out.append(SyncStep(verb, name, f"{damage[0].subject}: {damage[0].what}{more}"))
    return tuple(out)


# -- versions


def plan_version(
    name: str, stack: StackState, declared: Declared, seen: NameState, now: datetime
) -> VersionPlan:
    """Return what is to be done so that a version of NAME gets into its channel."""
    version, ledger = stack.version, seen.ledger
    if stack.problem:
        return VersionPlan(version, "failed", stack.problem)
    dates = ledger.dates.get(version, Dates())
    if dates.refuses(now.date().isoformat()) and _is_dated_by_person(ledger, version):
        # Days belong to the version: another image would be refused as well.
        return VersionPlan(version, "held", _describe_by_hand(name, version, dates))

    steps = _plan_image(stack, declared)
    if steps:
        steps += [
            SyncStep("test", stack.stack, "its image is new", version, one.partition)
            for one in stack.proofs
        ]
        steps.append(SyncStep("publish", stack.stack, "its image is new", version))
        if declared.channel == "production":
            steps.append(
                SyncStep("promote", f"{name}/{version}", _describe_gate(declared), version)
            )
        return VersionPlan(version, "todo", steps[0].why, tuple(steps))

    assert stack.image
    there = _find_live(ledger, version, stack.image, "production")
    if there:
        return VersionPlan(version, "done", f"in {there.channel} as {there.release}")
    # An image that is not live was retired, and comes back with its version; or its files are gone
    # after sync had retired it, and it is published anew; or a person took it away.
    taken = _find_taken(ledger, version, stack.image)
    by_sync = taken is not None and _was_taken_by_sync(ledger, taken)
    if taken and taken.state == "retired" and by_sync:
        return VersionPlan(version, "todo", "it comes back")
    if taken and not (taken.state == "gone" and by_sync):
        return VersionPlan(version, "held", _describe_taken(ledger, taken))
    there = _find_live(ledger, version, stack.image, declared.channel)
    if there:
        return VersionPlan(version, "done", f"in {there.channel} as {there.release}")
    return _plan_release(name, stack, declared, seen, now)


def _plan_image(stack: StackState, declared: Declared) -> list[SyncStep]:
    """Return the steps that make the image of STACK; none where it is there."""
    out = []
    if stack.stale:
        out.append(SyncStep("lock", stack.stack, "; ".join(stack.stale), stack.version))
    if stack.stale or not stack.image:
        verb: Verb = "pull" if declared.pull_from else "build"
        why = f"{declared.pull_from} has another image" if declared.pull_from else "it is not built"
        out.append(SyncStep(verb, stack.stack, why, stack.version))
    return out


def _plan_release(
    name: str, stack: StackState, declared: Declared, seen: NameState, now: datetime
) -> VersionPlan:
    """Return what is to be done for an image that is there, and not in its channel."""
    version, ledger = stack.version, seen.ledger
    assert stack.image
    due = [one for one in stack.proofs if one.reasons and _is_due(one, declared, now)]
    key = stack.image.key
    steps = [
        SyncStep("test", stack.stack, one.reasons[0], version, one.partition, key) for one in due
    ]
    in_testing = _find_live(ledger, version, stack.image, "testing")
    not_proven = [one for one in stack.proofs if one.reasons and one not in due]

    # What has failed reaches nobody, not even in testing.
    failed = [one for one in not_proven if one.failed]
    if failed:
        return VersionPlan(version, "failed", _describe_proofs(failed), tuple(steps))
    if not in_testing:
        steps.append(
            SyncStep("publish", stack.stack, "its image is not published", version, image=key)
        )
    if declared.channel == "testing":
        return VersionPlan(version, "todo", steps[0].why, tuple(steps))

    if not_proven:
        return VersionPlan(version, "failed", _describe_proofs(not_proven), tuple(steps))
    if stack.shut and not due:
        shut = f"the gate is shut: {'; '.join(stack.shut[:5])}"
        return VersionPlan(version, "failed", shut, tuple(steps))

    due_at = _find_due(declared, in_testing, now)
    if due_at > now:
        status: Status = "todo" if steps else "waits"
        note = f"in testing until {due_at.date().isoformat()}"
        return VersionPlan(version, status, note, tuple(steps))
    if seen.second_person:
        status = "todo" if steps else "waits"
        return VersionPlan(version, status, "a second person promotes it", tuple(steps))

    subject = f"{name}/{in_testing.release}" if in_testing else f"{name}/{version}"
    steps.append(SyncStep("promote", subject, _describe_gate(declared), version))
    return VersionPlan(version, "todo", steps[0].why, tuple(steps))


def _is_due(proof: ProofState, declared: Declared, now: datetime) -> bool:
    """Return whether the suite is to be run for PROOF, which is not given, today."""
    if not proof.tested or proof.outdated:
        return True
    return _read_moment(proof.tested) + timedelta(days=declared.prove.again) <= now


def _read_moment(text: str) -> datetime:
    """Return the time TEXT, as a report or a ledger has it. One without a zone is in UTC."""
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return datetime.fromtimestamp(0, timezone.utc)
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def _describe_proofs(proofs: Sequence[ProofState]) -> str:
    """Return in words why PROOFS, of partitions, are not given."""
    return "; ".join(
        f"not proven on {one.partition or 'the default partition'}: {'; '.join(one.reasons[:3])}"
        for one in proofs
    )


def _describe_gate(declared: Declared) -> str:
    """Return in words what a promotion waits for."""
    parts = ["once it is proven"]
    if declared.gate.days:
        parts.append(f"after {declared.gate.days} days in testing")
    if declared.gate.not_before:
        parts.append(f"not before {declared.gate.not_before}")
    return ", ".join(parts)


def _find_due(declared: Declared, in_testing: Entry | None, now: datetime) -> datetime:
    """Return from when on the release may be promoted."""
    since = _read_moment(in_testing.made) if in_testing else now
    due = since + timedelta(days=declared.gate.days)
    return max(due, _read_moment(declared.gate.not_before or ""))


def _find_live(ledger: Ledger, version: str, image: ImageState, channel: str) -> Entry | None:
    """Return VERSION's live release of IMAGE in CHANNEL; None where there is none.

    What is in production is in testing, too.
    """
    # Where the version means another image, an older release of this one is not what users load:
    # r2 of image A does not count once the version means r4 of image B.
    meant = ledger.aliased(version)
    least = meant.number if meant and meant.sha256 != image.sha256 else 0
    live = [
        one
        for one in ledger.of(version)
        if one.state == "live" and one.sha256 == image.sha256 and one.number >= least
    ]
    proven = [one for one in live if one.channel == "production"]
    if proven:
        return proven[-1]
    if channel == "testing" and live:
        return live[-1]
    return None


def _find_taken(ledger: Ledger, version: str, image: ImageState) -> Entry | None:
    """Return the newest release of IMAGE, if it was taken away; else None.

    A version that is retired by its dates counts as taken away, too.
    """
    same = [one for one in ledger.of(version) if one.sha256 == image.sha256]
    if not same:
        return None
    newest = same[-1]
    if newest.state != "live":
        return newest
    promoted = [one for one in same if one.channel == "production"]
    return promoted[-1] if promoted and promoted[-1].state != "live" else None


def _describe_taken(ledger: Ledger, taken: Entry) -> str:
    """Return in words who took the release TAKEN away, and why."""
    event = _find_last_event(ledger, taken.release)
    who = f" by {event.by}" if event else ""
    why = f": {event.reason}" if event and event.reason else ""
    day = (taken.since or taken.made)[:10]
    what = f"{ledger.name}/{taken.release} has been {taken.state} since {day}{who}{why}"
    return (
        f"{what}. sync publishes another image once recipe or lock make one; to leave the version "
        "out, name it in `without`"
    )


def _was_taken_by_sync(ledger: Ledger, taken: Entry) -> bool:
    """Return whether sync took the release TAKEN away, by days that it had given to its version."""
    event = _find_last_event(ledger, taken.release)
    is_by_sync = event is not None and event.verb.startswith(OF_SYNC)
    return is_by_sync and is_dated_by_sync(ledger, taken.version)


def _find_last_event(ledger: Ledger, release: str) -> Event | None:
    """Return the last event that changed the state of RELEASE, but for gc's."""
    for event in reversed(ledger.events):
        if event.verb != "gc" and release in ((event.before or {}).get("states") or {}):
            return event
    return None


# -- the default, and dates


@dataclass(frozen=True)
class _DeclaredAndSeen:
    """A name as it is declared and as it is TODAY.

    LASTING are the versions that are declared to stay. What speaks against a step goes into NOTES.
    """

    name: str
    declared: Declared
    seen: NameState
    lasting: Sequence[str]
    today: str
    notes: list[tuple[Status, str]]

    @property
    def ledger(self) -> Ledger:
        return self.seen.ledger

    def note(self, status: Status, what: str) -> None:
        """Add to the notes that it is so with the name."""
        self.notes.append((status, what))


def _plan_default(of: _DeclaredAndSeen) -> list[SyncStep]:
    """Return the step that chooses the default."""
    declared, ledger = of.declared, of.ledger
    if not declared.default or not ledger.entries:
        return []
    wanted = "" if declared.default == "newest" else declared.default
    if wanted and wanted not in of.lasting:
        is_ended = any(one.version == wanted for one in of.seen.stacks)
        why = "is refused by now" if is_ended else "is not declared"
        of.note("failed", f"the default is to be {wanted}, which {why}")
        return []
    if ledger.pinned == wanted:
        return []
    if wanted and not _is_there(ledger, wanted, declared, of.today):
        of.note("waits", f"the default will be {wanted} once it is in {declared.channel}")
        return []
    if not wanted and not ledger.aliases:
        return []
    was = f"somebody chose {ledger.pinned}" if ledger.pinned else "it is the newest in production"
    return [SyncStep("default", f"{of.name}/{wanted}" if wanted else of.name, was, wanted)]


def _plan_dates(of: _DeclaredAndSeen) -> list[SyncStep]:
    """Return the steps that give versions their days, and that bring back what sync had retired."""
    ledger = of.ledger
    out: list[SyncStep] = []
    loadable = {one.version for one in ledger.entries if one.state == "live"} | {*ledger.aliases}
    once = {one.version for one in ledger.entries}
    for version in sorted(loadable | once.intersection(of.lasting), key=make_version_key):
        old = ledger.dates.get(version, Dates())
        wanted = _choose_dates(version, of)
        if wanted is None:
            continue
        subject = f"{of.name}/{version}"
        if _is_same(wanted, old):
            if wanted.refuses(of.today) and version in loadable:
                why = f"it has been refused since {wanted.remove}"
                out.append(SyncStep("retire", subject, why, version, dates=old))
            continue
        verb: Verb = "retire" if wanted.deprecate or wanted.remove else "unretire"
        why = "it is declared" if verb == "unretire" else describe_days(wanted)
        out.append(SyncStep(verb, subject, why, version, dates=wanted))
    return out


def _is_same(one: Dates, other: Dates) -> bool:
    """Return whether ONE and OTHER say the same, whoever has set them."""
    return replace(one, origin="") == replace(other, origin="")


def _choose_dates(version: str, of: _DeclaredAndSeen) -> Dates | None:
    """Return the dates that VERSION shall have; None where they shall stay as they are."""
    ledger = of.ledger
    old = ledger.dates.get(version, Dates())
    explicit = of.declared.dates.get(version)
    is_dated = bool(old.deprecate or old.remove)
    by_person = _is_dated_by_person(ledger, version)

    if explicit:
        if not is_dated and _was_kept_by_person(ledger, version):
            of.note("held", _describe_kept(of.name, version))
            return None
        wanted = _read_dates(explicit, old, of.today)
        ends_earlier = bool(old.remove) and (not wanted.remove or old.remove < wanted.remove)
        if by_person and ends_earlier:
            of.note("held", _describe_by_hand(of.name, version, old))
            return None
        return wanted

    if version in of.lasting:
        if by_person and not old.refuses(of.today):  # else its row says so
            of.note("held", _describe_by_hand(of.name, version, old))
        # What sync had set goes, and what the recipe says now counts, if it can be read.
        stack = next(one for one in of.seen.stacks if one.version == version)
        return None if by_person or stack.problem else stack.lifecycle
    return _choose_last_days(version, of)


def _choose_last_days(version: str, of: _DeclaredAndSeen) -> Dates | None:
    """Return the dates of VERSION, which is not declared; None where it stays for now."""
    declared, ledger = of.declared, of.ledger
    old = ledger.dates.get(version, Dates())
    if old.remove:
        return old  # its day comes, or has come
    speaks_against = _find_keeper(version, of)
    if speaks_against:
        of.note(*speaks_against)
        return None
    if of.seen.unreadable:
        of.note("waits", f"{version} stays until all recipes of {of.name} can be read")
        return None
    missing = [one for one in of.lasting if not _is_there(ledger, one, declared, of.today)]
    if missing or not of.lasting:
        lacking = ", ".join(missing) or "a replacement"
        of.note("waits", f"{version} stays until {lacking} is in {declared.channel}")
        return None

    own = declared.retire
    end = date.fromisoformat(of.today) + timedelta(days=own.days)
    successor = f"{of.name}/{_choose_successor(ledger, of.lasting)}"
    return Dates(old.deprecate or of.today, end.isoformat(), successor, own.reason)


def _describe_by_hand(name: str, version: str, dates: Dates) -> str:
    """Return in words that a person gave VERSION its DATES, and what to type."""
    return (
        f"{version} was retired by hand: {describe_days(dates)}; "
        f"hpcstack retire {name}/{version} --cancel brings it back, `without` leaves it out"
    )


def _find_keeper(version: str, of: _DeclaredAndSeen) -> tuple[Status, str] | None:
    """Return what keeps VERSION from being retired: a person, or what looks like a mistake."""
    declared, ledger = of.declared, of.ledger
    is_left_out = matches_any(version, declared.without)
    if _was_kept_by_person(ledger, version) and not is_left_out:
        return "held", _describe_kept(ledger.name, version)
    if ledger.pinned == version and not declared.default:
        return "held", f"somebody chose {version}, which is not declared, as the default"
    if is_left_out or version in of.seen.known:
        return None
    if declared.versions and matches_any(version, declared.versions) and not declared.newest:
        return "failed", f"{version} is declared, and its recipe is not there"
    newest = max(of.lasting, key=make_version_key, default="")
    if newest and make_version_key(version) > make_version_key(newest):
        return "failed", (
            f"{version} is newer than all that is declared, and its recipe is not there: "
            "if it is to go, name it in `without`"
        )
    return None


def _describe_kept(name: str, version: str) -> str:
    """Return in words that a person cancelled the retirement of VERSION, and what ends that."""
    return (
        f"somebody cancelled the retirement of {version}: declare it, name it in `without`, or "
        f"type hpcstack retire {name}/{version}"
    )


def _is_dated_by_person(ledger: Ledger, version: str) -> bool:
    """Return whether VERSION has dates that a person has set."""
    dates = ledger.dates.get(version, Dates())
    if not (dates.deprecate or dates.remove) or dates.origin == "recipe":
        return False
    return not is_dated_by_sync(ledger, version)


def _was_kept_by_person(ledger: Ledger, version: str) -> bool:
    """Return whether a person took back the dates that sync had given to VERSION."""
    verbs = [
        event.verb
        for event in ledger.events
        if version in ((event.before or {}).get("dates") or {})
    ]
    given = any(verb == f"{OF_SYNC}retire" for verb in verbs)
    return given and not verbs[-1].startswith(OF_SYNC)


def is_dated_by_sync(ledger: Ledger, version: str) -> bool:
    """Return whether the dates of VERSION were set by sync, and not by a person since."""
    for event in reversed(ledger.events):
        if version in ((event.before or {}).get("dates") or {}):
            return event.verb.startswith(OF_SYNC)
    return False


def _read_dates(explicit: VersionDates, old: Dates, today: str) -> Dates:
    """Return the dates that the declaration gives; warnings begin today by default."""
    begin = explicit.warn or old.deprecate or today
    if explicit.refuse and explicit.refuse < begin:
        begin = explicit.refuse
    return Dates(begin, explicit.refuse or "", explicit.successor, explicit.reason)


def _is_there(ledger: Ledger, version: str, declared: Declared, today: str) -> bool:
    """Return whether VERSION can be loaded, in the channel that is declared."""
    meant = ledger.aliased(version)
    if not meant or ledger.dates.get(version, Dates()).refuses(today):
        return False
    return declared.channel == "testing" or meant.channel == "production"


def _choose_successor(ledger: Ledger, lasting: Sequence[str]) -> str:
    """Return the version that users of a retired one should load: the default, or the newest."""
    default = ledger.default.rpartition("-r")[0]
    return default if default in lasting else lasting[-1]
