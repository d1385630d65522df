"""`hpcstack jobs`.

Tested in tests/unit/cli/test_admins_day.py and tests/integration/test_what_went_wrong.py.
"""

from __future__ import annotations

import collections
import itertools
from typing import TYPE_CHECKING, Any, NoReturn

import click

from hpcstack.cli.session import Session, answer, format_table, json_option, show_progress
from hpcstack.core.names import WITHOUT_SLURM

if TYPE_CHECKING:
    from hpcstack.launch.record import Launch
    from hpcstack.slurm.state import JobState


@click.command("jobs")
@click.argument("job", default="", metavar="[JOB]")
@click.option(
    "--match",
    default="",
    metavar="REGEX",
    help="With JOB: show what its logs say last for this, of groups the groups.",
)
@click.option(
    "-n",
    "most",
    default=20,
    show_default=True,
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="List at most this many launches.",
)
@click.option(
    "--by-node",
    is_flag=True,
    help="Count the jobs that died on each node, of all users whose jobs Slurm shows you.",
)
@click.option(
    "--days",
    default=7,
    show_default=True,
    type=click.IntRange(min=1),
    help="How far back --by-node looks.",
)
@json_option
@click.pass_obj
def command(
    session: Session,
    job: str,
    match: str,
    most: int,
    by_node: bool,
    days: int,
    as_json: bool,
) -> None:
    """List past launches: what ran, where, and how it ended.

    The newest comes first. With JOB, its own table is shown: of an array, a row for each task, with
    the last line that it wrote, or what --match finds. With --json, the folder of each launch is
    named, which holds its script, image, lock and variables. --by-node names nodes on which more jobs
    died than chance explains; exit code 1 if there are any.
    """
    if job and by_node:
        raise click.UsageError("--by-node is about all jobs: leave out JOB")
    if match and not job:
        raise click.UsageError("--match looks into the logs of one job: name it")
    if by_node:
        _show_by_node(session, days, most, as_json=as_json)
    if job:
        _show_parts(session, job, match, as_json=as_json)
        return

    from hpcstack.launch.jobs import find_states, may_have_changed
    from hpcstack.launch.record import read_launches

    found = list(itertools.islice(read_launches(), most))
    asked = [launch.job_or_array for launch in found if may_have_changed(launch)]
    known = find_states(asked, session.runner)
    rows = [_make_row(launch, known) for launch in found]
    answer(rows, as_json, lambda: _format_text(rows))


def _show_by_node(session: Session, days: int, most: int, *, as_json: bool) -> NoReturn:
    """Show the nodes on which most jobs of the last DAYS died, and end: with 1 if one is odd."""
    from dataclasses import asdict

    from hpcstack.core.errors import SlurmError, format_count
    from hpcstack.slurm.client import Client
    from hpcstack.slurm.node_failures import count_by_node

    jobs = Client(session.runner).query_ended(days)
    if jobs is None:
        raise SlurmError(
            "sacct does not answer: this site has no accounting, or it is down",
            "hpcstack doctor",
            page="name-the-slow-node",
        )
    nodes = count_by_node(jobs)
    odd = [one for one in nodes if one.is_odd]
    document = {
        "days": days,
        "jobs": len(jobs),
        "nodes": [{**asdict(one), "odd": one.is_odd} for one in nodes],
    }

    def show() -> str:
        rows = [
            (
                one.node,
                str(one.jobs),
                str(len(one.died)),
                f"{one.chance:.2g}",
                "ODD" if one.is_odd else "",
                ",".join(one.died[-5:]),
            )
            for one in nodes[:most]
            if one.died
        ]
        head = f"{format_count(len(jobs), 'job')} ended in {format_count(days, 'day')}"
        if not rows:
            return f"{head}, and none died"
        return f"{head}\n" + format_table(
            rows, ("NODE", "JOBS", "DIED", "CHANCE", "", "LAST THAT DIED")
        )

    answer(document, as_json, show)
    raise click.exceptions.Exit(1 if odd else 0)


def _show_parts(session: Session, job: str, match: str, *, as_json: bool) -> None:
    """Show how each part of JOB stands, and what its log says."""
    from dataclasses import asdict

    from hpcstack.core.errors import InputError
    from hpcstack.launch.job_table import compile_pattern, make_part_rows
    from hpcstack.launch.jobs import find_job_parts

    pattern = compile_pattern(match)
    parts = find_job_parts(job, session.runner)
    if not parts:
        raise InputError(f"neither Slurm nor a launch knows job {job}", "hpcstack jobs lists yours")
    with show_progress("reading") as progress:
        rows = make_part_rows(parts, pattern, progress)

    def show() -> str:
        says = "MATCH" if pattern else "LAST LINE"
        shown = [
            (
                row.job,
                row.state,
                row.elapsed or "-",
                row.nodes or "-",
                "  ".join(row.found) if pattern else row.said[:80],
            )
            for row in rows
        ]
        return format_table(shown, ("JOB", "STATE", "ELAPSED", "NODES", says))

    answer([asdict(row) for row in rows], as_json, show)


def _make_row(launch: Launch, known: dict[str, JobState]) -> dict[str, Any]:
    from hpcstack.launch.jobs import find_state, list_task_states

    job = launch.job_or_array
    state = str(find_state(launch, known))
    if launch.is_array:
        tasks = list_task_states(launch, known)
        states = _format_counts(collections.Counter(map(str, tasks.values())))
        state = states or str(known.get(job, ""))
    is_running = job in known and known[job].word == "RUNNING"
    return {
        "job": job,
        "step": launch.step,
        "stack": launch.stack,
        "started": launch.started,
        "nodes": launch.nodes,
        "state": state or "?",
        "can_enter": is_running and launch.runtime != WITHOUT_SLURM,
        "runtime": launch.runtime,
        "mode": launch.mode,
        "command": list(launch.command),
        "folder": str(launch.folder),
    }


def _format_counts(states: collections.Counter[str]) -> str:
    return ", ".join(f"{count} {state}" for state, count in states.most_common())


def _format_text(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "nothing was launched yet"

    shown = [
        (
            row["job"] or "-",
            row["stack"],
            row["started"],
            row["nodes"] or "-",
            row["state"],
            " ".join(row["command"])[:50],
        )
        for row in rows
    ]
    table = format_table(shown, ("JOB", "STACK", "STARTED", "NODES", "STATE", "COMMAND"))
    open_ones = [row["job"] for row in rows if row["can_enter"]]
    if open_ones:
        table += f"\n\nhpcstack enter {open_ones[0]} opens a shell in a running job"
    return table
