"""The options of a launch, each declared once, and the request that they make.

`hpcstack launch` shows them; `shell`, `python`, `jupyter` and others take them, too. An option has the
name of its field in LaunchRequest or Resources.

Tested in tests/unit/cli/test_interactive.py and tests/unit/launch/test_plan.py.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hpcstack.cli.choices import OptionalChoice
from hpcstack.cli.resources import OPTIONS, parse_resources
from hpcstack.core.errors import HpcstackError, InputError
from hpcstack.core.names import MODES, STAGES, WITHOUT_SLURM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hpcstack.cli.session import Session
    from hpcstack.launch.request import LaunchRequest

WRONG_INPUT = 2
F = TypeVar("F", bound="Callable[..., Any]")


def _take_one(_ctx: click.Context, param: click.Parameter, values: tuple[Path, ...]) -> Path | None:
    """Return the one of VALUES; None for none. Of several the last would win without a word."""
    if len(values) > 1:
        several = ", ".join(map(str, values))
        raise click.BadParameter(f"{several}: one project is taken", param=param)
    return values[0] if values else None


LAUNCH_OPTIONS = (
    *OPTIONS,
    click.option(
        "--mode",
        default="",
        type=OptionalChoice(MODES),
        show_default="the recipe's",
        help="How the ranks are started.",
    ),
    click.option(
        "--elastic",
        default="",
        metavar="MIN:MAX",
        help="Run on MIN to MAX nodes, and go on when a node fails (mode torchrun).",
    ),
    click.option(
        "--restarts",
        default=0,
        show_default=True,
        type=click.IntRange(min=0),
        metavar="NUMBER",
        help="Let torchrun restart failed workers this many times (mode torchrun).",
    ),
    click.option(
        "--mount",
        "mounts",
        multiple=True,
        metavar="SOURCE:TARGET",
        help="Mount SOURCE at TARGET; of a squashfs file, its contents. May be given several times.",
    ),
    click.option(
        "--home/--no-home",
        default=None,
        show_default="as site.yaml says, else mount it",
        help="Mount the home directory, or do not.",
    ),
    click.option(
        "--slurm/--no-slurm",
        default=None,
        show_default="as the recipe or site.yaml says",
        help="Let srun, squeue and the like be typed in the image, or do not.",
    ),
    click.option(
        "--with",
        "packages",
        multiple=True,
        metavar="PACKAGE",
        help="Add this pip package, or those of a requirements file. May be given several times.",
    ),
    click.option(
        "--project",
        type=click.Path(path_type=Path),
        multiple=True,
        callback=_take_one,
        metavar="FOLDER",
        help="Add your project in FOLDER, and the packages that it needs.",
    ),
    click.option(
        "--stage",
        default="",
        type=OptionalChoice(STAGES),
        show_default="the site's",
        help="How to bring the image to the nodes' own disks first.",
    ),
    click.option(
        "--stage-in",
        "stage_in",
        multiple=True,
        metavar="SOURCE:TARGET",
        help="Copy SOURCE to the nodes' own disks first, and mount it at TARGET.",
    ),
    click.option(
        "--grace",
        default=0,
        type=click.IntRange(0, 65535),
        metavar="SECONDS",
        help="Send SIGUSR1 to every rank this many seconds before the time limit.",
    ),
    click.option(
        "--watchdog",
        default=0,
        type=click.IntRange(0),
        metavar="SECONDS",
        help="After this many seconds without output, report what each rank is doing and end the step.",
    ),
    click.option(
        "--debug",
        default=None,
        type=click.IntRange(0),
        metavar="RANK",
        help="Stop this rank in a debugger: `hpcstack enter --debug` talks to it.",
    ),
    click.option(
        "--spare",
        default=0,
        type=click.IntRange(0),
        metavar="NODES",
        help="Request this many extra nodes, and leave out nodes that are not healthy.",
    ),
    click.option(
        "--requeue-without",
        is_flag=True,
        help="If a node is to blame when the job fails, put the job back into the queue without it.",
    ),
    click.option(
        "-Q",
        "--quiet",
        is_flag=True,
        help="Print only what you may not expect, and what failed. Also passed on to srun.",
    ),
    click.option(
        "-l",
        "--label",
        is_flag=True,
        help="Begin each line that a rank writes with its number.",
    ),
    click.option(
        "--no-bind",
        "bind",
        flag_value=False,
        default=True,
        help="Do not bind ranks to the cores near their GPUs.",
    ),
    click.option(
        "--batch", is_flag=True, help="Submit it as a batch job, and print the job's number."
    ),
    click.option("--dry-run", "only_shown", is_flag=True, help="Only show what would be run."),
    click.option(
        "--all",
        "all_stderr",
        is_flag=True,
        help="Show all that a failing step writes to stderr; with --dry-run, the whole script.",
    ),
)


def launch_options(function: F) -> F:
    """Add all options of a launch to a command."""
    for option in reversed(LAUNCH_OPTIONS):
        function = option(function)
    return function


@contextlib.contextmanager
def own_failures() -> Iterator[None]:
    """Let a failure of hpcstack's own end with 125 inside.

    The exit code of a launch is the command's own, so that the two can be told apart.
    """
    from hpcstack.launch.plan import OWN_FAILURE

    try:
        yield
    except HpcstackError as error:
        if error.exit_code != WRONG_INPUT:
            error.exit_code = OWN_FAILURE
        raise


def starts_by_srun(session: Session, runtime: str) -> bool:
    """Whether a launch by RUNTIME, as the command line has it, is started by srun."""
    wanted = session.site.runtime if runtime == "auto" else runtime
    return session.runner.has("srun") and wanted != WITHOUT_SLURM


def make_request(
    ctx: click.Context, name: str, command: tuple[str, ...], options: dict[str, Any]
) -> LaunchRequest:
    """Return the request to run COMMAND in the image that NAME means, with the parsed OPTIONS.

    Options that are not ours go to srun or sbatch. Raise InputError for those that they do not know
    either.
    """
    from hpcstack.launch.commands import check_step
    from hpcstack.launch.request import LaunchRequest, check_srun_options, resolve_mount

    session: Session = ctx.obj
    passed: tuple[str, ...] = ctx.meta["passed"]
    # `--mem 10G` instead of `--mem=10G`: click took `10G` for the first word of the command
    argv = ctx.params["argv"]
    if passed and argv and argv != ctx.meta["command"]:
        raise InputError(
            f"{argv[0]!r} comes before the `--`",
            "hpcstack launch [STACK] [OPTIONS] -- train.py; srun's options: --mem=10G",
            page="write-a-job-script",
        )
    extra = (*options["extra"], *passed)
    own = [option for param in ctx.command.params for option in param.opts]
    check_srun_options(passed, own, session.runner, batch=options["batch"])
    if not options["batch"] and options["runtime"] != WITHOUT_SLURM:
        check_step(os.environ)
        if options["quiet"] and session.runner.has("srun"):
            extra = (*extra, "--quiet")

    requeue: tuple[str, ...] = ()
    if options["requeue_without"]:
        requeue = (*session.command_on(options["partition"]), "requeue")
    direct = {field.name for field in fields(LaunchRequest)} & options.keys()
    given = {field: options[field] for field in direct}
    return LaunchRequest(
        **{
            **given,
            "command": command,
            "name": name,
            "mounts": tuple(map(resolve_mount, options["mounts"])),
            "resources": parse_resources({**options, "extra": extra}),
            "requeue": requeue,
        }
    )
