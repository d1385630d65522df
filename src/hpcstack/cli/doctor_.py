"""`hpcstack doctor`.

Tested in tests/unit/lock/test_known.py and tests/integration/test_launching.py.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, NoReturn

import click

from hpcstack.cli.session import Session, answer, json_option, show_progress

if TYPE_CHECKING:
    from hpcstack.diagnose.advice import Finding


@click.command("doctor")
@click.option(
    "-w",
    "--nodelist",
    default="",
    metavar="NODES",
    help="Also look at these compute nodes, by a job step on them.",
)
@click.option(
    "--job",
    default="",
    metavar="JOB",
    help="Also look at the nodes of this job, which is yours and running.",
)
@click.option(
    "-p", "--partition", default="", metavar="PARTITION", help="The partition of the nodes."
)
@json_option
@click.pass_obj
def command(session: Session, nodelist: str, job: str, partition: str, as_json: bool) -> NoReturn:
    """Say what is wrong with this machine, the cluster and its nodes, and what to do.

    What is looked at is what building and launching stacks needs. Exit code 1: something is wrong.
    """
    from hpcstack.diagnose.run import examine_machines, find_locked_bases

    with show_progress("looking") as progress:
        bases = find_locked_bases(session.catalog, session.site)
        found = examine_machines(
            session.site, session.runner, nodelist, job, partition, progress, bases
        )

    failed = sum(one.status == "FAIL" for one in found)
    document = {"findings": [asdict(one) for one in found], "failed": failed}
    answer(document, as_json, lambda: _format_text(found, failed))
    raise click.exceptions.Exit(1 if failed else 0)


def _format_text(found: list[Finding], failed: int) -> str:
    order = {"FAIL": 0, "WARN": 1, "OK": 2, "SKIP": 3}  # what needs work comes first
    lines = []
    for one in sorted(found, key=lambda one: order[one.status]):
        lines.append(f"{one.status:4}  {one.code:12}  {one.where}: {one.found}")
        if one.status in ("FAIL", "WARN"):
            lines += [f"      {one.why}", f"      -> {one.remedy}"]
            if one.page:
                lines.append(f"      READ: hpcstack help {one.page}")

    warned = sum(one.status == "WARN" for one in found)
    return "\n".join([*lines, "", f"{failed} wrong, {warned} to look at, {len(found)} looked at"])
