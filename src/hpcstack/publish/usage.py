"""Who loads and launches what: the lines of syslog about it, counted.

The lines are in the files that the site's syslog writes (usage.files), also in rotated and packed
ones. Anybody may write such a line, so each is bounded and believed only for counting.
"""

from __future__ import annotations

import glob
import gzip
import pwd
import sys
import tempfile
import zlib
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import IO, TYPE_CHECKING

from hpcstack.core.errors import InputError
from hpcstack.core.usage_line import TAG, LoggedUse, parse_use

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hpcstack.core.process import Runner
    from hpcstack.publish.holdings import HeldRelease
    from hpcstack.releases.tree import Tree
    from hpcstack.site.load import Site

NOTIFIED_DAYS = 90  # who used a version in these is written to when it is retired
LONGEST = 2048  # bytes of a line; the rest of a longer one is passed over
# What is kept of a log, which anybody may fill: releases that are not published, and users of
# releases in all. Uses of further ones are counted together.
MOST_STRANGE, MOST_USERS = 2000, 200_000


@dataclass
class ReleaseUse:
    """How one release, or a stack that is not published, was used."""

    release: str
    loads: int = 0
    launches: int = 0
    users: Counter[str] = field(default_factory=Counter)  # {user: loads and launches}
    first: int = 0  # seconds since 1970
    last: int = 0
    weeks: Counter[str] = field(default_factory=Counter)  # {2026-W47: loads and launches}
    unnamed: int = 0  # loads and launches of users beyond MOST_USERS

    @property
    def uses(self) -> int:
        """Loads and launches, whoever did them."""
        return self.loads + self.launches

    def add(self, use: LoggedUse, *, named: bool) -> None:
        """Count USE, with its user if that is NAMED."""
        self.loads += use.what == "load"
        self.launches += use.what == "launch"
        if named:
            self.users[use.user] += 1
        else:
            self.unnamed += 1
        self.first = min(self.first or use.at, use.at)
        self.last = max(self.last, use.at)
        self.weeks[name_week(use.at)] += 1


@dataclass
class Usage:
    """What the logs say of the time since a day."""

    since: str  # the day from which the logs tell, and which was asked for
    asked: str  # the day that was asked for
    files: list[str]
    releases: list[ReleaseUse]  # the most used first
    unused: list[str]  # releases that can be loaded and that nobody used
    lines: int  # of uses that were read
    others: int = 0  # uses of what is not published, beyond MOST_STRANGE names


def count_people(releases: Iterable[HeldRelease], usage: Usage) -> tuple[HeldRelease, ...]:
    """Return RELEASES, each with how many people used it by USAGE."""
    people = {one.release: len(one.users) for one in usage.releases}
    return tuple(replace(one, people=people.get(one.name, 0)) for one in releases)


def name_week(at: int) -> str:
    """Return the ISO week of AT, seconds since 1970: `2026-W48`."""
    year, week, _ = datetime.fromtimestamp(at, timezone.utc).isocalendar()
    return f"{year}-W{week:02}"


def count_usage(
    site: Site, tree: Tree, days: int, now: datetime, given: Sequence[str] = (), name: str = ""
) -> Usage:
    """Count the uses of the last DAYS in the logs: those that are GIVEN, else the site's.

    NAME, as `pytorch` or `pytorch/24.11`, leaves out what is not of it. InputError where there is no
    log to read.
    """
    since = now - timedelta(days=days)
    paths = find_usage_logs(given or site.usage.files)
    counted = _Counted(published=frozenset(_list_published(tree)))
    lines = 0
    oldest = now.timestamp()
    for path in paths:
        for use in read_uses(path):
            lines += 1
            oldest = min(oldest, use.at)
            if since.timestamp() <= use.at <= now.timestamp() + 86400 and _is_of(use.release, name):
                counted.add(use)

    by_release = counted.by_release
    found = sorted(by_release.values(), key=lambda one: (-one.uses, one.release))
    # logs are rotated away: of the days before their first line nothing is known
    begins = max(since, datetime.fromtimestamp(max(oldest, 0), timezone.utc))
    known = [one for one in _list_loadable(tree, begins) if _is_of(one, name)]
    unused = [one for one in known if one not in by_release]
    files = [str(path) for path in paths]
    return Usage(
        f"{begins:%Y-%m-%d}", f"{since:%Y-%m-%d}", files, found, unused, lines, counted.others
    )


@dataclass
class _Counted:
    """The uses that were counted so far, by release, and how many of them are kept by name."""

    published: frozenset[str]
    by_release: dict[str, ReleaseUse] = field(default_factory=dict)
    strange: int = 0  # releases that are not published
    pairs: int = 0  # of a release and a user
    others: int = 0

    def add(self, use: LoggedUse) -> None:
        """Count USE; that of a name beyond the limits with the others."""
        release = self.by_release.get(use.release)
        if release is None:
            is_strange = use.release not in self.published
            if is_strange and self.strange >= MOST_STRANGE:
                self.others += 1
                return
            self.strange += is_strange
            release = self.by_release[use.release] = ReleaseUse(use.release)

        is_new = use.user not in release.users
        is_named = not is_new or self.pairs < MOST_USERS
        self.pairs += is_new and is_named
        release.add(use, named=is_named)


def _is_of(release: str, name: str) -> bool:
    """Whether RELEASE, as `pytorch/24.11-r2` or `pytorch-24.11`, is of NAME; of all where empty."""
    if not name:
        return True
    as_release = release.rpartition("-r")[0] if "/" in release else release
    return name in (release, as_release, release.partition("/")[0]) or as_release == name.replace(
        "/", "-", 1
    )


def _list_published(tree: Tree) -> list[str]:
    """Return all releases that TREE has ever had."""
    return [f"{name}/{one.release}" for name in tree.names() for one in tree.ledger(name).entries]


def _list_loadable(tree: Tree, begins: datetime) -> list[str]:
    """Return all releases that users could load all the time since BEGINS."""
    return [
        f"{name}/{entry.release}"
        for name in tree.names()
        for entry in tree.ledger(name).entries
        if entry.state == "live" and _read_time(entry.made) <= begins
    ]


def _read_time(said: str) -> datetime:
    """Return the time SAID of a ledger; the first of all where it is none."""
    try:
        return datetime.fromisoformat(said).astimezone(timezone.utc)
    except ValueError:
        return datetime.fromtimestamp(0, timezone.utc)


def find_usage_logs(patterns: Iterable[str]) -> list[Path]:
    """Return the files that PATTERNS mean, `-` for standard input. InputError where there is none."""
    named = list(patterns)
    if not named:
        raise InputError(
            "the site does not say where its logs of use are",
            "usage.files in site.yaml, or journalctl -t hpcstack-usage | hpcstack usage --log -",
            page="see-who-uses-what",
        )
    out: list[Path] = []
    for pattern in named:
        found = [pattern] if pattern == "-" else sorted(glob.glob(pattern))  # noqa: PTH207
        if not found:
            raise InputError(
                f"{pattern}: no such file", "hpcstack usage --log FILE", page="see-who-uses-what"
            )
        out += [Path(one) for one in found]
    return out


def read_uses(path: Path) -> Iterator[LoggedUse]:
    """Yield what the lines of PATH tell of; `-` is standard input. InputError if it cannot be read."""
    try:
        with _open_log(path) as log:
            for line in _read_lines(log):
                use = parse_use(line.decode("utf-8", "replace"))
                if use:
                    yield use
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {error}", page="see-who-uses-what") from None


def _open_log(path: Path) -> IO[bytes] | gzip.GzipFile:
    if str(path) == "-":
        return sys.stdin.buffer
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    return path.open("rb")


def _read_lines(log: IO[bytes] | gzip.GzipFile) -> Iterator[bytes]:
    """Yield the lines of LOG that are about use; of a long line the rest is passed over."""
    tag = TAG.encode()
    whole = True  # whether the next piece begins a line
    while piece := log.readline(LONGEST):
        if whole and tag in piece:
            yield piece
        whole = piece.endswith(b"\n")


@dataclass(frozen=True)
class Notice:
    """A message to one user of what is retired."""

    user: str
    command: tuple[str, ...]  # that sends it; empty where the site has none
    text: str


def write_notices(usage: Usage, site: Site, version: str, dates: dict[str, str]) -> list[Notice]:
    """Return a message to each user in USAGE about VERSION, whose DATES are those of `retire`."""
    users = sorted({user for one in usage.releases for user in one.users})
    subject = f"{version} will be retired on {dates['remove']}"
    lines = [
        f"You have used {version} since {usage.since}.",
        f"From {dates['remove']} on, it cannot be loaded or launched any more.",
    ]
    if dates.get("successor"):
        lines.append(f"Use {dates['successor']} instead: module load {dates['successor']}")
    if dates.get("reason"):
        lines.append(f"Why: {dates['reason']}")
    text = "\n".join(lines) + "\n"
    return [
        Notice(
            user,
            make_mail_command(site, user, subject),
            text,
        )
        for user in users
    ]


def send_notices(notices: Sequence[Notice], runner: Runner) -> list[str]:
    """Run the command of each of NOTICES with its text as input; return what was not sent, and why.

    Anybody can write a name into a log: only users whom this machine knows are written to.
    """
    failed = []
    for notice in notices:
        try:
            pwd.getpwnam(notice.user)
        except KeyError:
            failed.append(f"{notice.user}: this machine knows no such user")
            continue
        why = send_message(notice.command, notice.text, runner)
        if why:
            failed.append(f"{notice.user}: {why}")
    return failed


def send_message(command: Sequence[str], text: str, runner: Runner) -> str:
    """Run COMMAND with TEXT as its input. Return why it was not sent; empty where it was."""
    with tempfile.NamedTemporaryFile("w", prefix="hpcstack-notice-") as file:
        file.write(text)
        file.flush()
        done = runner.output(command, stdin=Path(file.name))
    if not done.status:
        return ""
    said = " ".join(done.tail)[-200:]
    return f"{command[0]} ended with {done.status}: {said}"


def make_mail_command(site: Site, user: str, subject: str) -> tuple[str, ...]:
    """Return the site's command that sends a message to USER; empty where it has none."""
    return tuple(
        word.replace("{user}", user).replace("{subject}", subject) for word in site.usage.mail
    )
