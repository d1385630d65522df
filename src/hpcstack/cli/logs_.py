"""`hpcstack logs`.

Tested in tests/hostile/test_second_round.py and tests/integration/test_job_verbs.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hpcstack.cli.session import Session, answer, echo, json_option

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.core.process import Runner


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
@click.option("-f", "--follow", is_flag=True, help="Follow the log as it grows, until Ctrl-C.")
@json_option
@click.pass_obj
def command(session: Session, job: str, lines: int, follow: bool, as_json: bool) -> None:
    """Show what a job wrote.

    JOB is the newest launch's by default. Of a job array, the log of each task is shown; JOB_TASK
    is one task's. Of a launch that you waited for, only its stderr is shown: the rest went to your
    terminal. The paths of the logs are printed on stderr.
    """
    from hpcstack.cli.session import say
    from hpcstack.launch import stderr
    from hpcstack.launch.jobs import NotStarted, find_logs
    from hpcstack.launch.record import find_launch

    try:
        if job:
            paths = find_logs(job, session.runner)
        else:
            launch = find_launch("")
            job = launch.job
            kept_stderr = launch.folder / stderr.NAME
            if kept_stderr.is_file():
                paths = [kept_stderr]
            else:
                paths = find_logs(launch.job_or_array or launch.folder.name, session.runner)
    except NotStarted as error:
        said = error.message
        answer({"job": job, "paths": [], "said": said}, as_json, lambda: said)
        return

    if as_json:
        answer({"job": job, "paths": [str(path) for path in paths]}, True, str)
        return

    say(", ".join(map(str, paths)))
    if follow:
        _follow(paths, lines, session.runner)
    for path in paths:
        if len(paths) > 1:
            echo(f"==> {path} <==")
        echo("\n".join(_read_last(path, lines)))


def _follow(paths: list[Path], lines: int, runner: Runner) -> None:
    """Print PATHS as they grow, until Ctrl-C.

    `tail` does not write to the terminal itself: `echo` takes out what would control it.
    """
    import contextlib
    import io

    argv = ["tail", "-n", str(lines or "+1"), "-F", *map(str, paths)]
    with contextlib.suppress(KeyboardInterrupt), runner.read(argv) as raw:
        for line in io.BufferedReader(raw):  # type: ignore[type-var]  # a FileIO
            echo(line.decode(errors="replace").rstrip("\n"))


def _read_last(path: Path, lines: int) -> list[str]:
    """Return the last LINES of the log at PATH; 0 means all of them."""
    from hpcstack.cli.logfiles import end_of

    found = end_of(path).splitlines()
    return found[-lines:] if lines else found
