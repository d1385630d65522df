"""`hpcstack logs`."""

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
    help="How many last lines; 0: all.",
)
@click.option("-f", "--follow", is_flag=True, help="Follow it as it grows, until Ctrl-C.")
@json_option
@click.pass_obj
def command(session: Session, job: str, lines: int, follow: bool, as_json: bool) -> None:
    """What a job wrote, the newest launch's by default. The paths are printed on stderr.

    Of an array each task's, or one task's: JOB_TASK. Of a launch that you waited for, what it wrote
    to stderr: the rest went to your terminal.
    """
    from hpcstack.cli.session import say
    from hpcstack.launch import stderr
    from hpcstack.launch.jobs import NotStarted, logs_of
    from hpcstack.launch.record import find_launch

    try:
        if job:
            paths = logs_of(job, session.runner)
        else:
            launch = find_launch("")
            own, job = launch.folder / stderr.NAME, launch.job
            paths = (
                [own]
                if own.is_file()
                else logs_of(launch.job_or_array or launch.folder.name, session.runner)
            )
    except NotStarted as waits:
        said = waits.message
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
        echo("\n".join(_last(path, lines)))


def _follow(paths: list[Path], lines: int, runner: Runner) -> None:
    """PATHS as they grow, until Ctrl-C: what a job writes does not command the terminal."""
    import contextlib
    import io

    argv = ["tail", "-n", str(lines or "+1"), "-F", *map(str, paths)]
    with contextlib.suppress(KeyboardInterrupt), runner.read(argv) as raw:
        for line in io.BufferedReader(raw):  # type: ignore[type-var]  # a FileIO
            echo(line.decode(errors="replace").rstrip("\n"))


def _last(path: Path, lines: int) -> list[str]:
    from hpcstack.cli.logfiles import end_of

    found = end_of(path).splitlines()
    return found[-lines:] if lines else found
