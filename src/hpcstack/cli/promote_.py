"""`hpcstack promote`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from hpcstack.cli.published import DRY_RUN, REASON, published_argument, publisher, split, with_version
from hpcstack.cli.publishing import DIFF, OVERRIDE, REPORTS, check_commands, show_foretold, shown, sign_and_check
from hpcstack.cli.session import Session, answer, json_option

if TYPE_CHECKING:
    from pathlib import Path


@click.command("promote")
@published_argument
@REPORTS
@OVERRIDE
@click.option("--keep-default", is_flag=True, help="The default stays what it is now.")
@REASON
@DRY_RUN
@DIFF
@json_option
@click.pass_obj
def command(
    session: Session,
    name: str,
    reports_: tuple[Path, ...],
    override: str,
    keep_default: bool,
    reason: str,
    dry_run: bool,
    diff: bool,
    as_json: bool,
) -> None:
    """A testing release becomes a production one: a new release whose help carries the report that proves it."""
    from hpcstack.core.errors import InputError
    from hpcstack.publish import reports
    from hpcstack.publish.status import planned
    from hpcstack.releases.inputs import one_line
    from hpcstack.releases.records import read_attachments, read_release

    override, reason = one_line(override, "--override"), one_line(reason, "--reason")
    acts = publisher(session)
    ledger, version, release = split(session, name)
    if name == ledger.name and len({one.version for one in ledger.entries}) > 1:
        with_version(session, "promote", name)
    candidates = [one for one in ledger.of(version) if one.state == "live" and one.channel == "testing"]
    if release:
        candidates = [ledger.entry(release)]
        if (state := candidates[0].state) != "live":
            back = "retire --cancel" if state == "retired" else "undo" if state == "removed" else "rollback"
            raise InputError(f"{ledger.name}/{release} is {state}",
                             f"hpcstack history {ledger.name} says why; hpcstack {back} {ledger.name}/"
                             f"{version if state == 'retired' else release} brings it back")  # fmt: skip
    if not candidates:
        retired = any(one.state == "retired" for one in ledger.of(version))
        what = (
            f"{ledger.name}/{version} is retired" if retired else f"no testing release of {ledger.name}/{version} waits"
        )
        hint = f"retire {ledger.name}/{version} --cancel" if retired else f"publish {ledger.name}-{version}"
        raise InputError(what, f"hpcstack {hint}")
    stack, artifact = read_release(session.store, ledger.name, candidates[-1].release)
    given = [reports.read(path) for path in reports_] or reports.reports(stack.full_name, artifact.sha256)
    report, override = reports.proven(stack, artifact, session.site, given, override, named=bool(reports_))
    pinned = ledger.default.rpartition("-r")[0] if keep_default else None
    if dry_run or diff:
        changes, files = planned(acts, stack, artifact, "production", report, override, pinned)
        show_foretold(changes, files, diff=diff, as_json=as_json)
        return
    check_commands(session, stack, artifact)
    sign_and_check(session, artifact)
    more = read_attachments(session.store, ledger.name, candidates[-1].release)
    done = acts.publish(stack, artifact, "production", report, more, override, pinned=pinned, reason=reason)
    answer(asdict(done), as_json, lambda: shown(done))
