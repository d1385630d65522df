"""`hpcstack hang`."""

from __future__ import annotations

from pathlib import Path

import click

from hpcstack.cli.session import Session, answer, json_option, say


@click.command("hang")
@click.argument("job", default="", metavar="[JOB]")
@click.option("--all", "every", is_flag=True, help="Every rank's stacks, too.")
@click.option(
    "--flights",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Read what torch's flight recorder has left there instead: no job need run.",
)
@json_option
@click.pass_obj
def command(session: Session, job: str, every: bool, flights: Path | None, as_json: bool) -> None:
    """Say where the ranks of a running job are, and which of them is not where the others are.

    JOB is its number, or NUMBER.STEP; the newest launch's by default. Every node is asked by a step
    of its own beside the job's (Python stacks by py-spy; NCCL's own RAS, where it listens; what
    GPUs and HCAs do; torch's flight recorder, where TORCH_FR_DUMP_TEMP_FILE lies on a shared disk);
    nothing is stopped. Exit 1: a rank stands out, or none was found.
    """
    if flights:
        _answer_flights(flights, as_json)
    from hpcstack.core.errors import format_count
    from hpcstack.launch.hang_report import report_hang
    from hpcstack.launch.stacks import ask_nodes, parse_job

    asked = parse_job(job)
    text, silent = ask_nodes(asked, session.runner)
    report = report_hang(text)
    say(f"job {asked.job}: {asked.why}")
    if silent:
        say(
            f"NOTE: {format_count(silent, 'node')} did not answer in time: the ranks there "
            f"count as not there"
        )
    shown = list(report.lines)
    if every:
        shown += ["", text.rstrip()]
    elif report.document["steps"]:
        shown += ["", "--all: the stacks"]
    answer({"job": asked.job, **report.document}, as_json, lambda: "\n".join(shown))
    raise click.exceptions.Exit(0 if report.well else 1)


def _answer_flights(folder: Path, as_json: bool) -> None:
    """The flight recorders' files of FOLDER alone."""
    from hpcstack.launch.flights import judge_flights, read_flights, summarise_flights

    found = read_flights(folder)
    odd, notes = judge_flights(found)
    document = {"flights": {"ranks": sorted(found), "odd": odd, "notes": notes}}
    answer(document, as_json, lambda: "\n".join(summarise_flights(found)[0]))
    raise click.exceptions.Exit(1 if odd else 0)
