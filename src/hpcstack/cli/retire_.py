"""`hpcstack retire`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_release_verbs.py.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.published import (
    add_changing_options,
    make_change,
    published_arguments,
    tell_changes,
    tree_of,
    with_version,
)
from hpcstack.cli.session import Session, is_pattern, json_option, say
from hpcstack.cli.several import answer_each, can_be_loaded, choose_published_versions
from hpcstack.core.clock import read_clock
from hpcstack.releases.retirement import NOTICE_DAYS

if TYPE_CHECKING:
    from hpcstack.publish.usage import Notice
    from hpcstack.releases.ledger import Ledger
    from hpcstack.releases.retirement import Retirement


@click.command("retire")
@published_arguments
@click.option(
    "--warn",
    default="",
    metavar="DAY",
    show_default="today",
    help="Warn users from this day on, as YYYY-MM-DD.",
)
@click.option(
    "--on",
    "remove",
    default="",
    metavar="DAY",
    show_default=f"in {NOTICE_DAYS} days",
    help="Refuse to load it from this day on, as YYYY-MM-DD.",
)
@click.option("--now", is_flag=True, help="Refuse it from now on, and remove its alias.")
@click.option("--cancel", is_flag=True, help="Remove the dates: neither warn nor refuse.")
@click.option(
    "--successor",
    default="",
    metavar="NAME/VERSION",
    help="Tell users to use this version instead.",
)
@click.option(
    "--notify",
    is_flag=True,
    help="Write to those who used it: by usage.mail of site.yaml, else print the messages.",
)
@add_changing_options
@json_option
@click.pass_obj
def command(
    session: Session,
    names: tuple[str, ...],
    warn: str,
    remove: str,
    now: bool,
    cancel: bool,
    successor: str,
    notify: bool,
    reason: str,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Warn the users of a version, and refuse to load it from a given day on.

    Users see the --reason. Nobody loses what is already loaded. Several versions, or a pattern such
    as 'pytorch/24.*', are retired one after another.
    """
    from hpcstack.core.errors import InputError
    from hpcstack.releases.inputs import parse_one_line
    from hpcstack.releases.retirement import Retirement

    if notify and cancel:
        raise InputError(
            "--notify is about what ends, and --cancel ends nothing",
            "hpcstack retire NAME/VERSION --cancel",
            page="retire-a-release",
        )
    reason = parse_one_line(reason, "--reason")
    asked = Retirement(warn, remove, now, cancel, successor, reason)
    how = _HowToRetire(asked, notify=notify, force=force, dry_run=dry_run)

    counts, nothing = can_be_loaded, "can be loaded"
    if cancel:
        counts, nothing = is_dated, "is retired"
    chosen = choose_published_versions(session, names, counts, nothing)
    if len(chosen) > 1 or any(map(is_pattern, names)):
        _retire_each(session, chosen, how, as_json=as_json)
        return

    document, changes = _retire_one(session, chosen[0], how)
    last = describe_retired(document, cancel=cancel, now=now)
    tell_changes(document, changes, dry_run=dry_run, as_json=as_json, last=last)


@dataclass(frozen=True)
class _HowToRetire:
    """What was asked for, and how it is done."""

    asked: Retirement
    notify: bool
    force: bool
    dry_run: bool


def is_dated(ledger: Ledger, version: str) -> bool:
    """Return whether VERSION has a day from which its users are warned or refused."""
    from hpcstack.releases.ledger import Dates

    dates = ledger.dates.get(version, Dates())
    return bool(dates.deprecate or dates.remove)


def _retire_each(session: Session, names: list[str], how: _HowToRetire, *, as_json: bool) -> None:
    """Retire one version after another."""

    def retire(name: str) -> dict[str, Any]:
        document, changes = _retire_one(session, name, how)
        said = describe_retired(document, cancel=how.asked.cancel, now=how.asked.now)
        if how.dry_run:
            said = "; ".join(changes) or "nothing would change"
        return {**document, "said": said, "changes": changes, "dry_run": how.dry_run}

    answer_each("version", names, retire, as_json=as_json)


def _retire_one(session: Session, name: str, how: _HowToRetire) -> tuple[dict[str, Any], list[str]]:
    """Retire the version NAME. Return what is so now as a document, and a line for each change."""
    from hpcstack.core.errors import InputError
    from hpcstack.releases.changes import retire_version
    from hpcstack.releases.inputs import stamp_today
    from hpcstack.releases.retirement import choose_retirement_dates

    ledger, version, release = with_version(session, "retire", name)
    full = f"{ledger.name}/{version}"
    if release:
        raise InputError(
            f"{ledger.name}/{release} is one release; a version is retired",
            f"hpcstack retire {full}",
            page="retire-a-release",
        )

    dates = choose_retirement_dates(how.asked, ledger, version, tree_of(session))
    notices = _write_notices(session, full, asdict(dates)) if how.notify else []
    after, changes = make_change(
        session,
        ledger.name,
        "retire --cancel" if how.asked.cancel else "retire",
        lambda old, event: retire_version(old, version, dates, stamp_today(), event),
        reason=how.asked.reason,
        force=how.force,
        dry_run=how.dry_run,
    )
    told = _notify(session, notices, dry_run=how.dry_run) if how.notify else {}
    default = f"{ledger.name}/{after.default}" if after.default else ""
    return {"version": full, **asdict(dates), "default": default, **told}, changes


def _write_notices(session: Session, version: str, dates: dict[str, str]) -> list[Notice]:
    """Return a message to each user of VERSION, as the site's logs know them."""
    from hpcstack.publish.usage import NOTIFIED_DAYS, count_usage, write_notices

    now = read_clock()
    usage = count_usage(session.site, tree_of(session), NOTIFIED_DAYS, now, (), version)
    return write_notices(usage, session.site, version, dates)


def _notify(session: Session, notices: list[Notice], *, dry_run: bool) -> dict[str, Any]:
    """Send NOTICES by the site's command, or print them; return whom they were for."""
    from hpcstack.publish.usage import NOTIFIED_DAYS, send_notices

    users = [one.user for one in notices]
    may_name = session.site.usage.names
    named = f": {', '.join(users)}" if may_name and users else ""
    say(f"{len(users)} people used it in the last {NOTIFIED_DAYS} days{named}")
    if not notices:
        return {"notified": [], "not_notified": []}

    if dry_run or not session.site.usage.mail:
        say(f"the message to each:\n{notices[0].text}")
        return {"notified": [], "not_notified": users if may_name else len(users)}
    failed = send_notices(notices, session.runner)
    for one in failed:
        say(f"NOTE: not sent to {one if may_name else one.partition(': ')[2]}")
    unsent = {one.partition(":")[0] for one in failed}
    sent = [one for one in users if one not in unsent]
    if not may_name:
        return {"notified": len(sent), "not_notified": len(unsent)}
    return {"notified": sent, "not_notified": sorted(unsent)}


def describe_retired(document: dict[str, str], *, cancel: bool, now: bool) -> str:
    """Return in a sentence what users of the version in DOCUMENT will see."""
    if cancel:
        return f"{document['version']} is no longer retired: nobody is warned or refused"
    if now:
        return (
            f"{document['version']} is refused from now on; the default is "
            f"{document['default'] or 'none'}"
        )
    warned, refused = document["deprecate"], document["remove"]
    return (
        f"{document['version']}: users are warned from {warned} on, and it is refused from "
        f"{refused} on"
    )
