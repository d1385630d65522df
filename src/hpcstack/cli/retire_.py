"""`hpcstack retire`."""

from __future__ import annotations

import click

from hpcstack.cli.published import change, changing, published_argument, tell, with_version
from hpcstack.cli.session import Session, json_option

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
@changing
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
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Warn the users of a version, and refuse it from a day on; they see the --reason. Nobody loses what is loaded."""
    from dataclasses import asdict
    from datetime import date, timedelta

    from hpcstack.core.errors import InputError
    from hpcstack.releases import inputs
    from hpcstack.releases.changes import retired
    from hpcstack.releases.ledger import Dates

    if (now and (remove or warn)) or (cancel and (now or remove or warn or successor)):
        raise InputError("--now and --cancel take only a --reason", "hpcstack retire NAME/VERSION --now")
    ledger, version, release = with_version(session, "retire", name)
    if release:
        raise InputError(
            f"{ledger.name}/{release} is one release; a version is retired", f"hpcstack retire {ledger.name}/{version}"
        )
    old = ledger.dates.get(version, Dates())
    begin = inputs.day(warn, "--warn") if warn else min(old.deprecate or inputs.today(), inputs.today())
    later = (date.fromisoformat(max(begin, inputs.today())) + timedelta(days=NOTICE_DAYS)).isoformat()
    end = inputs.today() if now else inputs.day(remove, "--on") if remove else later
    if end < begin:
        raise InputError(f"it would be refused on {end}, before anybody is warned on {begin}", "--warn DAY --on DAY")
    if successor:
        _loads(session, successor, ledger.name, version)
    told_before = (successor or old.successor, reason or old.reason)
    dates = Dates(begin, end, inputs.successor(told_before[0]), inputs.one_line(told_before[1], "--reason"))
    dates = Dates() if cancel else dates
    verb = "retire --cancel" if cancel else "retire"
    after, changes = change(
        session, ledger.name, verb, lambda old, event: retired(old, version, dates, inputs.today(), event),
        reason=reason, force=force, dry_run=dry_run,
    )  # fmt: skip
    default = f"{ledger.name}/{after.default}" if after.default else ""
    document = {"version": f"{ledger.name}/{version}", **asdict(dates), "default": default}
    tell(document, changes, dry_run=dry_run, as_json=as_json, last=told(document, cancel=cancel, now=now))


def _loads(session: Session, successor: str, name: str, version: str) -> None:
    """InputError for a SUCCESSOR that users could not load."""
    from hpcstack.core.errors import InputError
    from hpcstack.releases import inputs
    from hpcstack.releases.ledger import Dates
    from hpcstack.releases.ledger import split as parts
    from hpcstack.releases.tree import Tree

    tree = Tree(session.site.module_root)
    one, rest = parts(inputs.successor(successor), tree.names())
    ledger = tree.ledger(one)
    meant = rest or ledger.default.rpartition("-r")[0]
    if (one, meant) == (name, version):
        raise InputError(f"--successor: {successor} is what is retired", "name what users should load instead")
    if meant not in ledger.aliases or ledger.dates.get(meant, Dates()).refuses(inputs.today()):
        known = ", ".join(f"{one}/{each}" for each in ledger.aliases) or "nothing"
        raise InputError(
            f"--successor: {successor} cannot be loaded; of {one} there is {known}", f"hpcstack status {one}"
        )


def told(document: dict[str, str], *, cancel: bool, now: bool) -> str:
    if cancel:
        return f"{document['version']} is no longer retired: nobody is warned or refused"
    if now:
        return f"{document['version']} is refused from now on; the default is {document['default'] or 'none'}"
    warned, refused = document["deprecate"], document["remove"]
    return f"{document['version']}: users are warned from {warned} on, and it is refused from {refused} on"
