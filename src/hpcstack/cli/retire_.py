"""`hpcstack retire`."""

from __future__ import annotations

import click

from hpcstack.cli.published import published_argument, publisher, split
from hpcstack.cli.session import Session, answer, json_option

NOTICE_DAYS = 30  # of the default life cycle that sites use: DoD HPCMP, FY05-01


@click.command("retire")
@published_argument
@click.option("--warn", default="", metavar="DAY", help="Users are warned from then on; by default from today.")
@click.option(
    "--on", "remove", default="", metavar="DAY", help=f"It is refused from then on; by default in {NOTICE_DAYS} days."
)
@click.option("--now", is_flag=True, help="It is refused from now on, and no alias names it.")
@click.option("--cancel", is_flag=True, help="Neither warn nor refuse: the dates are taken away.")
@click.option("--successor", default="", metavar="NAME/VERSION", help="What users are told to use instead.")
@click.option("--reason", default="", help="Why; users see it.")
@json_option
@click.pass_obj
def command(
    session: Session,
    name: str,
    warn: str,
    remove: str,
    now: bool,
    cancel: bool,
    successor: str,
    reason: str,
    as_json: bool,
) -> None:
    """Warn the users of a version, and refuse it from a day on. Nobody loses what is loaded: files stay."""
    from dataclasses import asdict
    from datetime import date, timedelta

    from hpcstack.errors import InputError
    from hpcstack.modules import ledger as ledgers
    from hpcstack.modules import words

    if (now and (remove or warn)) or (cancel and (now or remove or warn or successor)):
        raise InputError("--now and --cancel go alone with a --reason", "hpcstack retire NAME/VERSION --now")
    ledger, version, release = split(session, name)
    if release:
        raise InputError(
            f"{ledger.name}/{release} is one release; a version is retired", f"hpcstack retire {ledger.name}/{version}"
        )
    old = ledger.dates.get(version, ledgers.Dates())
    begin = words.day(warn, "--warn") if warn else min(old.deprecate or words.today(), words.today())
    later = (date.fromisoformat(max(begin, words.today())) + timedelta(days=NOTICE_DAYS)).isoformat()
    end = words.today() if now else words.day(remove, "--on") if remove else later
    if end < begin:
        raise InputError(f"it would be refused on {end}, before anybody is warned on {begin}", "--warn DAY --on DAY")
    told_before = (successor or old.successor, reason or old.reason)
    dates = ledgers.Dates(begin, end, words.successor(told_before[0]), words.one_line(told_before[1], "--reason"))
    dates = ledgers.Dates() if cancel else dates
    verb = "retire --cancel" if cancel else "retire"
    after = publisher(session).change(
        ledger.name,
        verb,
        lambda old, event: ledgers.retired(old, version, dates, words.today(), event),
        reason and dates.reason,
    )
    default = f"{ledger.name}/{after.default}" if after.default else ""
    document = {"version": f"{ledger.name}/{version}", **asdict(dates), "default": default}
    answer(document, as_json, lambda: told(document, cancel=cancel, now=now))


def told(document: dict[str, str], *, cancel: bool, now: bool) -> str:
    if cancel:
        return f"{document['version']} has no dates any more"
    if now:
        return f"{document['version']} is refused from now on; the default is {document['default'] or 'none'}"
    warned, refused = document["deprecate"], document["remove"]
    return f"{document['version']}: users are warned from {warned} on, and it is refused from {refused} on"
