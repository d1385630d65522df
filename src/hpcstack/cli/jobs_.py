"""`hpcstack jobs`."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.session import Session, answer, format_table, json_option

if TYPE_CHECKING:
    from hpcstack.launch.record import Launch
    from hpcstack.slurm.state import JobState


@click.command("jobs")
@click.option(
    "-n", "most", default=20, show_default=True, type=click.IntRange(min=1), help="How many."
)
@json_option
@click.pass_obj
def command(session: Session, most: int, as_json: bool) -> None:
    """Past launches, the newest first. Each has a folder with its script, image, lock and
    variables.
    """
    from hpcstack.launch.jobs import find_states
    from hpcstack.launch.record import read_launches

    found = read_launches()[:most]
    open_ones = [launch.job_or_array for launch in found if launch.status is None and launch.job]
    known = find_states(open_ones, session.runner)
    rows = [_row(launch, known) for launch in found]
    answer(rows, as_json, lambda: _text(rows))


def _row(launch: Launch, known: dict[str, JobState]) -> dict[str, Any]:
    from hpcstack.launch.jobs import state_of_launch

    job = launch.job_or_array
    state = str(state_of_launch(launch)) or _state(job, known) or _written_down(launch)
    return {
        "job": job,
        "step": launch.step,
        "stack": launch.stack,
        "started": launch.started,
        "nodes": launch.nodes,
        "state": state or "?",
        "runtime": launch.runtime,
        "mode": launch.mode,
        "command": list(launch.command),
        "folder": str(launch.folder),
    }


def _state(job: str, known: dict[str, JobState]) -> str:
    """JOB's state; of an array how many of its tasks are in which."""
    tasks = collections.Counter(
        str(state) for one, state in known.items() if one.startswith(f"{job}_")
    )
    if tasks:
        return _counted(tasks)
    return str(known[job]) if job in known else ""


def _written_down(launch: Launch) -> str:
    """How the tasks of an array ended, as each wrote it down: Slurm may no longer know."""
    from hpcstack.slurm.state import state_of_status

    ended = (str(state_of_status(status)) for status in launch.tasks.values() if status is not None)
    return _counted(collections.Counter(ended))


def _counted(states: collections.Counter[str]) -> str:
    return ", ".join(f"{count} {state}" for state, count in states.most_common())


def _text(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "nothing was launched yet"
    head = ("JOB", "STACK", "STARTED", "NODES", "STATE", "COMMAND")
    return format_table(
        [
            (
                row["job"] or "-",
                row["stack"],
                row["started"],
                row["nodes"] or "-",
                row["state"],
                " ".join(row["command"])[:50],
            )
            for row in rows
        ],
        head,
    )
