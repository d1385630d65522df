"""`hpcstack usage`.

Tested in tests/unit/cli/test_verbs.py.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.published import add_optional_name, tree_of
from hpcstack.cli.session import Session, answer, format_table, json_option
from hpcstack.core.clock import read_clock

if TYPE_CHECKING:
    from hpcstack.publish.usage import ReleaseUse, Usage

SHOWN_USERS = 10


@click.command("usage")
@add_optional_name
@click.option(
    "--days",
    default=90,
    type=click.IntRange(1, 3660),
    metavar="N",
    show_default=True,
    help="Count the last N days.",
)
@click.option("--weeks", is_flag=True, help="Show a column for each week.")
@click.option("--names", is_flag=True, help="Name the users, where the site allows it.")
@click.option(
    "--log",
    "logs",
    multiple=True,
    metavar="FILE",
    show_default="usage.files in site.yaml",
    help="Read this log; `-` is standard input. May be given several times.",
)
@json_option
@click.pass_obj
def command(
    session: Session,
    name: str,
    days: int,
    weeks: bool,
    names: bool,
    logs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show who loads and launches what, and what nobody uses.

    With a name only its releases are shown. The log is what syslog keeps of hpcstack-usage:
    `hpcstack site usage-hook` makes module systems write it, `usage.log` in site.yaml makes
    launches write it.
    """
    from hpcstack.core.errors import InputError
    from hpcstack.publish.usage import count_usage

    if names and not session.site.usage.names:
        raise InputError(
            "this site does not show who its users are",
            "usage.names in site.yaml; without --names they are counted",
            page="see-who-uses-what",
        )
    now = read_clock()
    usage = count_usage(session.site, tree_of(session), days, now, logs, name)
    document = {
        "since": usage.since,
        "asked": usage.asked,
        "files": usage.files,
        "lines": usage.lines,
        "releases": [_make_row(one, names=names) for one in usage.releases],
        "unused": usage.unused,
        "others": usage.others,
    }
    answer(document, as_json, lambda: _format_text(usage, weeks=weeks, names=names))


def _make_row(one: ReleaseUse, *, names: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "release": one.release,
        "loads": one.loads,
        "launches": one.launches,
        "people": len(one.users),
        "unnamed": one.unnamed,
        "first": _format_day(one.first),
        "last": _format_day(one.last),
        "weeks": dict(sorted(one.weeks.items())),
    }
    if names:
        row["users"] = dict(one.users.most_common())
    return row


def _format_day(at: int) -> str:
    return f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%d}"


def _format_text(usage: Usage, *, weeks: bool, names: bool) -> str:
    """Return a table of what was used since the day, and what was not."""
    lines = []
    if usage.releases:
        columns = sorted({week for one in usage.releases for week in one.weeks}) if weeks else []
        head = ("RELEASE", "LOADS", "LAUNCHES", "PEOPLE", "LAST", *columns)
        rows = []
        for one in usage.releases:
            counts = [str(one.weeks[week] or "") for week in columns]
            numbers = (str(one.loads), str(one.launches), str(len(one.users)))
            rows.append((one.release, *numbers, _format_day(one.last), *counts))
        lines.append(format_table(rows, head))
    else:
        lines.append(f"nobody used anything since {usage.since}, by {len(usage.files)} logs")
    unnamed = sum(one.unnamed for one in usage.releases)
    if usage.others or unnamed:
        lines.append(
            f"NOTE: the logs name more than is kept: {usage.others} uses of other names are counted "
            f"for no release, and {unnamed} for no user"
        )
    if usage.since != usage.asked:
        lines.append(f"NOTE: the logs begin on {usage.since}, not on {usage.asked}")
    if names:
        lines += ["", *(_describe_users(one) for one in usage.releases)]
    if usage.unused:
        lines += ["", f"nobody since {usage.since}: {', '.join(usage.unused)}"]
    return "\n".join(lines)


def _describe_users(one: ReleaseUse) -> str:
    shown = [f"{user} ({count})" for user, count in one.users.most_common(SHOWN_USERS)]
    left = len(one.users) - len(shown)
    return f"{one.release}: {', '.join(shown)}" + (f" and {left} more" if left else "")
