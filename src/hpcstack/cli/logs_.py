"""`hpcstack logs`.

Tested in tests/integration/test_ends.py and tests/integration/test_job_verbs.py.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

from hpcstack.cli.session import Session, answer, echo, json_option, say

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hpcstack.launch.jobs import JobPart


@click.command("logs")
@click.argument("job", default="", metavar="[JOB]")
@click.option(
    "-n",
    "lines",
    default=50,
    show_default=True,
    type=click.IntRange(min=0),
    metavar="NUMBER",
    help="Show this many of the last lines; 0 for all.",
)
@click.option(
    "-f", "--follow", is_flag=True, help="Wait for the job, and follow its log until it has ended."
)
@json_option
@click.pass_obj
def command(session: Session, job: str, lines: int, follow: bool, as_json: bool) -> None:
    """Show what a job wrote.

    JOB is that of this terminal's newest launch by default, else of the newest of all. Of a job
    array, the log of each task is shown; JOB_TASK is one task's. Of a launch that you waited for,
    only its stderr is shown: the rest went to your terminal. The job's state and the paths of the
    logs are printed on stderr.
    """
    from hpcstack.launch.jobs import NotStarted

    if not job:
        job = _find_newest()
    if follow and not as_json:
        with contextlib.suppress(KeyboardInterrupt):
            _follow(session, job, lines)
        return

    parts: list[JobPart] = []
    paths: list[Path] = []
    said = ""
    try:
        parts, paths = _find(session, job)
    except NotStarted as error:
        said = error.message
    if as_json or said:
        document = {
            "job": job,
            "state": _describe_states(parts),
            "paths": [str(one) for one in paths],
        }
        if said:
            document["said"] = said
        answer(document, as_json, lambda: said)
        return

    from hpcstack.launch.log_tail import read_last_lines

    _say_state(job, parts, ", ".join(map(str, paths)))
    for path in paths:
        if len(paths) > 1:
            echo(f"==> {path} <==")
        echo("\n".join(read_last_lines(path, lines)))


def _find_newest() -> str:
    """Return how the newest launch is named: by its job, else by its folder."""
    from hpcstack.launch.record import find_launch

    launch = find_launch("")
    if launch.is_inside_a_job:
        return launch.folder.name
    return launch.job_or_array or launch.folder.name


def _find(session: Session, job: str) -> tuple[list[JobPart], list[Path]]:
    """Return (what is known of JOB, its logs). Raise as `jobs.list_logs`."""
    from hpcstack.launch.jobs import find_job_parts, list_logs

    parts = find_job_parts(job, session.runner)
    return parts, list_logs(job, parts)


def _describe_states(parts: Sequence[JobPart]) -> str:
    """Return the states of PARTS, each once."""
    return ", ".join(dict.fromkeys(str(part.state) for part in parts if part.state.is_known))


def _say_state(job: str, parts: Sequence[JobPart], more: str) -> None:
    say(f"{job} {_describe_states(parts)}".rstrip() + f": {more}")


def _follow(session: Session, job: str, lines: int) -> None:
    """Print what JOB writes, from its last LINES on, until it has ended."""
    from hpcstack.core.errors import InputError, SlurmError
    from hpcstack.launch.jobs import (
        NotStarted,
        find_job_parts,
        is_known_to_have_ended,
        list_logs,
    )
    from hpcstack.launch.log_tail import follow_logs

    parts: list[JobPart] = []
    has_ended = False
    told = ""

    def is_over() -> bool:
        nonlocal parts, has_ended
        with contextlib.suppress(SlurmError):  # it does not answer just now
            parts = find_job_parts(job, session.runner)
        has_ended = is_known_to_have_ended(job, parts, session.runner)
        return has_ended

    def find() -> list[Path]:
        nonlocal told
        said = ""
        paths: list[Path] = []
        try:
            paths = list_logs(job, parts)
        except NotStarted as error:
            said = error.message
        except InputError:  # its file may not be seen here yet
            if has_ended:
                raise
        if said and said != told:
            say(said)
        told = said
        return paths

    last: Path | None = None
    for path, line in follow_logs(find, is_over, lines):
        if last not in (None, path):
            echo(f"==> {path} <==")
        last = path
        echo(line)
    _say_state(job, parts, f"hpcstack explain {job}")
