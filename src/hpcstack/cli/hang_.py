"""`hpcstack hang`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_job_verbs.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from hpcstack.cli.session import Session, answer, echo, json_option, say

if TYPE_CHECKING:
    from hpcstack.core.process import Completed


@click.command("hang")
@click.argument("job", default="", metavar="[JOB]")
@click.option("--all", "every", is_flag=True, help="Also print every rank's stacks.")
@click.option(
    "--flights",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Read what torch's flight recorder has left in this folder instead. No job needs to run.",
)
@click.option(
    "--as-user",
    is_flag=True,
    help="Ask as the job's user. For root: Slurm lets nobody else start a step in a job.",
)
@json_option
@click.pass_obj
def command(
    session: Session, job: str, every: bool, flights: Path | None, as_user: bool, as_json: bool
) -> NoReturn:
    """Show where the ranks of a running job are, and which one stands out.

    JOB is its number, or NUMBER.STEP; the newest launch's by default. Root asks another user's job
    by --as-user, or by `hang.command` of site.yaml. Every node is asked by a step of its own beside
    the job's, and nothing is stopped. It reports Python stacks by py-spy, NCCL's
    RAS where it listens, what GPUs and HCAs do, and torch's flight recorder where
    TORCH_FR_DUMP_TEMP_FILE is on a shared disk. Exit code 1: a rank stands out, or no rank was
    found.
    """
    if flights:
        _show_flights(flights, as_json)

    from hpcstack.core.errors import format_count
    from hpcstack.launch.hang_report import report_hang
    from hpcstack.launch.stacks import ask_job, parse_job, run_as_job_user

    asked = parse_job(job)
    if as_user:
        words = ["--site", session.site_file] if session.site_file else []
        words += ["hang", job or asked.job]
        words += ["--all"] * every + ["--json"] * as_json
        _relay(run_as_job_user(asked.job, words, session.runner))
    answers = ask_job(asked, session.site.hang.command, session.runner)
    report = report_hang(answers.text, answers.silent, reads_files=answers.own)
    say(f"job {asked.job}: {asked.why}{f'; {answers.note}' if answers.note else ''}")
    if answers.silent:
        say(
            f"NOTE: {format_count(answers.silent, 'node')} did not answer in time: the ranks there "
            f"count as not there"
        )

    shown = list(report.lines)
    if every:
        shown += ["", answers.text.rstrip()]
    elif report.document["steps"]:
        shown += ["", "--all prints the stacks"]
    answer({"job": asked.job, **report.document}, as_json, lambda: "\n".join(shown))
    raise click.exceptions.Exit(0 if report.well else 1)


def _relay(done: Completed) -> NoReturn:
    """Print what another user's process printed, made harmless, and end with its status."""
    from hpcstack.core.errors import sanitize_for_terminal

    for line in done.stdout.splitlines():
        echo(line)
    for line in done.tail[len(done.stdout.splitlines()) :]:
        click.echo(sanitize_for_terminal(line), err=True)
    raise click.exceptions.Exit(done.status)


def _show_flights(folder: Path, as_json: bool) -> NoReturn:
    """Show what the flight recorders' files in FOLDER say, and end: with 0 only if all is well."""
    from hpcstack.launch.flights import read_flights
    from hpcstack.launch.wait_graph import (
        describe_diagnosis,
        diagnose_hang,
        summarise_diagnosis,
    )

    unread: list[str] = []
    found = read_flights(folder, unread=unread)
    for problem in unread:
        say(f"NOTE: {problem}; what it would say is not known")
    diagnosis = diagnose_hang(found)
    document = {"flights": describe_diagnosis(found, diagnosis), "unread": unread}
    answer(document, as_json, lambda: "\n".join(summarise_diagnosis(found, diagnosis)))
    raise click.exceptions.Exit(0 if diagnosis.well and not unread else 1)
