"""Tells people what changes: those whom the declaration names, and users of what is retired.

Who was told of what is kept beside the lease of sync, a file for each name, and written after each
message. So a run that is killed loses no message; at worst one is sent twice.
"""

from __future__ import annotations

import hashlib
import json
import pwd
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hpcstack.core.clock import read_clock
from hpcstack.core.errors import (
    HpcstackError,
    StoreError,
    format_count,
    sanitize_for_terminal,
)
from hpcstack.core.files import read_bytes, write_text
from hpcstack.core.untrusted import parse_untrusted_json
from hpcstack.publish.usage import (
    NOTIFIED_DAYS,
    count_usage,
    make_mail_command,
    send_message,
    write_notices,
)
from hpcstack.releases.inputs import stamp_today
from hpcstack.sync.plan import is_dated_by_sync

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hpcstack.core.sharing import Sharing
    from hpcstack.publish.publisher import Publisher
    from hpcstack.publish.usage import Usage
    from hpcstack.releases.ledger import Event, Ledger
    from hpcstack.sync.declaration import Declared
    from hpcstack.sync.result import NameResult, SyncResult

MAX_TOLD = 16 << 20  # bytes of a file
MOST_OF_LINE = 500  # characters


@dataclass
class ToldOfName:
    """Who was told what of one name.

    `events` is {address: how many events of the history}, `problems` {address: digest of what was
    not as declared}, `users` {version and its last day: the users who were written to}.
    """

    events: dict[str, int] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    users: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Notifications:
    """What a run needs to tell people: its folder, and who was told what before."""

    folder: Path
    told: dict[str, ToldOfName]  # {name: ...}


def begin_telling(
    folder: Path, declared: dict[str, Declared], publisher: Publisher
) -> Notifications:
    """Return who was told what of the names DECLARED, before anything changes.

    Whoever is new is told of nothing that happened before, and that is written down at once: what
    this run does is told by the next one, if this one is killed.
    """
    telling = Notifications(
        folder, {name: read_told(folder, name, publisher.site.sharing) for name in declared}
    )
    for name, one in declared.items():
        told = telling.told[name]
        new = [address for address in one.tell if address not in told.events]
        if not new:
            continue
        try:
            count = len(publisher.tree.ledger(name).events)
        except StoreError:  # it cannot be read: the run says so, and nobody is told of it yet
            continue
        told.events |= dict.fromkeys(new, count)
        write_told(telling, name, publisher)
    return telling


def read_told(folder: Path, name: str, publishers: Sharing) -> ToldOfName:
    """Return who was told what of NAME.

    Nobody and nothing where the file is not there, torn, or none of PUBLISHERS wrote it.
    """
    try:
        content = read_bytes(folder / f"{name}.json", MAX_TOLD, publishers=publishers)
        found = parse_untrusted_json(content, MAX_TOLD)
        return ToldOfName(
            {str(who): int(count) for who, count in found["events"].items()},
            {str(who): str(digest) for who, digest in found["problems"].items()},
            {str(what): [str(one) for one in who] for what, who in found["users"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, HpcstackError):
        return ToldOfName()


def write_told(telling: Notifications, name: str, publisher: Publisher) -> None:
    """Write down who was told what of NAME."""
    told = telling.told[name]
    document: dict[str, Any] = {
        "events": told.events,
        "problems": told.problems,
        "users": told.users,
    }
    sharing = publisher.site.sharing
    with publisher.store.acting("who was told was not written"):
        sharing.make_folder(telling.folder)
        text = json.dumps(document, indent=1) + "\n"
        # It names users: that is for those who publish, and for nobody else.
        mode = 0o640 if sharing.has_group else 0o600
        write_text(telling.folder / f"{name}.json", text, mode, sharing=sharing)


def tell_everybody(
    telling: Notifications, declared: dict[str, Declared], result: SyncResult, publisher: Publisher
) -> list[str]:
    """Tell whoever is to be told of RESULT. Return what could not be sent, and why, in words."""
    out = []
    for one in result.names:
        declares = declared[one.name]
        try:
            if declares.tell:
                out += _tell_of_name(telling, one, declares, result, publisher)
            if declares.retire.notify:
                out += _tell_users(telling, one.name, publisher)
        except StoreError as error:
            out.append(f"{one.name}: nobody was told: {error.message.splitlines()[0]}")
    return out


# -- those whom the declaration names


def _tell_of_name(
    telling: Notifications,
    one: NameResult,
    declared: Declared,
    result: SyncResult,
    publisher: Publisher,
) -> list[str]:
    """Tell the addresses of a name what has changed, and what is not as declared."""
    told = telling.told[one.name]
    ledger = publisher.tree.ledger(one.name)
    problems = list_problems_of(one)
    digest = digest_problems(mark_problems_of(one))
    out = []
    for address in declared.tell:
        news = ledger.events[told.events.get(address, 0) :]
        knows_problems = told.problems.get(address, digest_problems([])) == digest
        if not news and knows_problems:
            continue

        subject = f"{one.name} at {result.site}: {describe_counts(len(news), len(problems))}"
        command = make_mail_command(publisher.site, address, subject)
        if not command:
            return [f"{one.name}: nobody was told: usage.mail of site.yaml names no command"]
        text = write_message(ledger, news, problems, result)
        why = send_message(command, text, publisher.runner)
        if why:
            out.append(f"{one.name}: {address} was not told: {why}")
            continue
        told.events[address] = len(ledger.events)
        told.problems[address] = digest
        write_told(telling, one.name, publisher)
    return out


def list_problems_of(one: NameResult) -> list[str]:
    """Return what of a name is not as declared, and will not be by itself."""
    out = []
    for version in one.plan.versions:
        status, why = one.status_of(version)
        if status in ("failed", "held"):
            out.append(f"{one.name}/{version.version}: {why}")
    out += [f"{one.name}: {why}" for status, why in one.plan.notes if status in ("failed", "held")]
    shown = {version.version for version in one.plan.versions}
    out += [
        f"{deed.step.verb} {deed.step.subject}: {deed.said}"
        for deed in one.failures
        if deed.step.version not in shown or deed.step.verb in ("default", "retire", "unretire")
    ]
    return list(dict.fromkeys(out))


def mark_problems_of(one: NameResult) -> list[str]:
    """Return what makes the problems of a name the same ones as those of another run.

    The words of a failed step hold numbers of jobs and names of files: they do not count.
    """
    out = [f"{deed.step.verb} {deed.step.subject} {deed.exit_code}" for deed in one.failures]
    failed = {deed.step.version for deed in one.failures}
    for version in one.plan.versions:
        if version.status in ("failed", "held") and version.version not in failed:
            out.append(f"{version.version}: {version.note}")
    return out + [why for status, why in one.plan.notes if status in ("failed", "held")]


def digest_problems(problems: Sequence[str]) -> str:
    """Return what tells two lists of problems apart."""
    return hashlib.sha256("\n".join(problems).encode()).hexdigest()[:16]


def describe_counts(changes: int, problems: int) -> str:
    """Return in words how much there is to tell."""
    parts = []
    if changes:
        parts.append(format_count(changes, "change"))
    if problems:
        parts.append(format_count(problems, "problem"))
    return ", ".join(parts) or "all is as declared again"


def write_message(
    ledger: Ledger, news: Sequence[Event], problems: Sequence[str], result: SyncResult
) -> str:
    """Return the text of a message: what has changed, and what is not as declared."""
    lines = []
    if news:
        said = [describe_event(ledger, event) for event in news]
        lines += ["What has changed:", *(f"  {make_one_line(one)}" for one in said)]
    if problems:
        lines += ["What is not as declared:", *(f"  {make_one_line(one)}" for one in problems)]
    if not problems:
        lines.append("Nothing is wrong.")
    where = f"{result.folder} at {result.commit[:12]}" if result.commit else str(result.folder)
    lines += ["", f"Declared in {where}; hpcstack history {ledger.name} has all of it."]
    return "\n".join(lines) + "\n"


def make_one_line(text: str) -> str:
    """Return TEXT without line breaks and control characters.

    Some of it comes out of images. A mail program may take a line that begins with ~ as a command.
    """
    return " ".join(sanitize_for_terminal(text).split())[:MOST_OF_LINE]


def describe_event(ledger: Ledger, event: Event) -> str:
    """Return an EVENT of the history in one line."""
    moves = [
        f"{what}: {change}"
        for what, change in ((event.version, event.alias), ("default", event.default))
        if change
    ]
    parts = [f"{event.at[:16]} {event.verb} {ledger.name}/{event.subject} by {event.by}"]
    parts += [f"({', '.join(moves)})"] if moves else []
    parts += [f"- {event.reason}"] if event.reason else []
    return " ".join(parts)


# -- users of what is retired


def _tell_users(telling: Notifications, name: str, publisher: Publisher) -> list[str]:
    """Write to the users of each version of NAME that sync has retired, once for each last day."""
    tree, site, today = publisher.tree, publisher.site, stamp_today()
    ledger = tree.ledger(name)
    out = []
    for version, dates in ledger.dates.items():
        is_coming = bool(dates.remove) and dates.remove > today
        if not is_coming or not is_dated_by_sync(ledger, version):
            continue
        full = f"{name}/{version}"
        if not site.usage.mail:
            out.append(f"{full}: its users were not told: usage.mail of site.yaml names no command")
            continue
        try:
            usage = count_usage(site, tree, NOTIFIED_DAYS, read_clock(), (), full)
        except HpcstackError as error:
            out.append(f"{full}: its users were not told: {error.message}")
            continue

        usage = _leave_out_unknown_users(usage)
        told = telling.told[name].users.setdefault(f"{version} {dates.remove}", [])
        as_text = {
            "deprecate": dates.deprecate,
            "remove": dates.remove,
            "successor": dates.successor,
            "reason": dates.reason,
        }
        for notice in write_notices(usage, site, full, as_text):
            if notice.user in told:
                continue
            why = send_message(notice.command, notice.text, publisher.runner)
            if why:
                out.append(f"{full}: {notice.user if site.usage.names else 'a user'}: {why}")
                continue
            told.append(notice.user)
            write_told(telling, name, publisher)
    return out


def _leave_out_unknown_users(usage: Usage) -> Usage:
    """Return USAGE without users whom this machine does not know.

    Anybody can write a name into a log.
    """
    releases = [
        replace(one, users=Counter({user: n for user, n in one.users.items() if _is_user(user)}))
        for one in usage.releases
    ]
    return replace(usage, releases=releases)


def _is_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
