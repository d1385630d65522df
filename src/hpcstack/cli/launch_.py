"""`hpcstack launch`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.resources import COMMAND, Passing, parse_resources, resource_options
from hpcstack.cli.session import Session, answer, json_option, optional_stack, say, show_progress
from hpcstack.core.errors import sanitize_for_terminal
from hpcstack.core.names import MODES, STAGES, TEMPLATES, WITHOUT_SLURM

if TYPE_CHECKING:
    from hpcstack.launch.request import LaunchRequest
    from hpcstack.launch.run import PlannedLaunch


@click.command("launch", cls=Passing)
@optional_stack
@resource_options
@click.option(
    "--mode", default="", type=click.Choice(["", *MODES]), help="The recipe's by default."
)
@click.option(
    "--elastic",
    default="",
    metavar="MIN:MAX",
    help="Nodes, of which some may fail (mode torchrun).",
)
@click.option(
    "--restarts",
    default=0,
    type=click.IntRange(min=0),
    help="How often torchrun starts its workers again.",
)
@click.option(
    "--mount", "mounts", multiple=True, metavar="SOURCE:TARGET", help="Bound into the container."
)
@click.option(
    "--home/--no-home",
    default=None,
    help="Whether the home directory is mounted; as the site says: yes.",
)
@click.option(
    "--with",
    "packages",
    multiple=True,
    metavar="PACKAGE",
    help="A pip package to add to the image.",
)
@click.option(
    "--stage",
    default="",
    type=click.Choice(["", *STAGES]),
    help="How the image gets to nodes' own disks.",
)
@click.option(
    "--stage-in",
    "stage_in",
    multiple=True,
    metavar="SOURCE:TARGET",
    help="Copied to nodes' disks, and bound.",
)
@click.option(
    "--grace",
    default=0,
    type=click.IntRange(0, 65535),
    metavar="SECONDS",
    help="USR1 before the time is up.",
)
@click.option(
    "--watchdog",
    default=0,
    type=click.IntRange(0),
    metavar="SECONDS",
    help="Written nothing for so long: say what each rank does, and end it.",
)
@click.option(
    "--spare",
    default=0,
    type=click.IntRange(0),
    metavar="NODES",
    help="So many nodes more, of which those that are not fit are left out.",
)
@click.option(
    "-Q",
    "--quiet",
    is_flag=True,
    help="Say only what may not be as you expect, and what failed; srun's, too.",
)
@click.option("--no-bind", is_flag=True, help="Do not bind ranks to the cores near their GPUs.")
@click.option("--batch", is_flag=True, help="Submit it as a job, and print the job's number.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Only show what would be run; with --all every line, and its reason.",
)
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="All that a failing step says; of --dry-run the whole script.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Only say whether it could start: limits, image, command. Exit 1: no.",
)
@click.option(
    "--template",
    default="",
    type=click.Choice(["", *TEMPLATES]),
    help="Print a job script to copy.",
)
@json_option
@click.argument("argv", metavar="-- COMMAND [ARGUMENTS]...", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(
    ctx: click.Context,
    /,
    name: str,
    mode: str,
    mounts: tuple[str, ...],
    home: bool | None,
    batch: bool,
    dry_run: bool,
    every: bool,
    check: bool,
    quiet: bool,
    template: str,
    as_json: bool,
    argv: tuple[str, ...],
    **options: Any,
) -> None:
    """Run a command in a stack's image, on Slurm's nodes where there is Slurm. Waits, and returns
    the step's status.

    Modes: torchrun and deepspeed start one task per node, which starts the ranks there;
    task-per-gpu and mpi start each rank as a task of Slurm's; plain runs the command itself. A .py
    file or -m MODULE is Python. Any other option of srun (with --batch: of sbatch) comes before the
    `--`, written with `=`.
    """
    from hpcstack.core.errors import HpcstackError, InputError
    from hpcstack.launch.commands import check_step
    from hpcstack.launch.plan import OWN_FAILURE
    from hpcstack.launch.plan_launch import plan_launch

    session: Session = ctx.obj
    try:
        if template:
            given = {**options, "mode": mode, "mounts": mounts, "home": home}
            answer_template(ctx, name, template, given, argv, as_json=as_json)
            return
        if as_json and not (batch or dry_run or check):
            raise InputError(
                (
                    "--json goes with --dry-run, --check, --batch or --template: else stdout is "
                    "the command's"
                ),
                "hpcstack jobs --json lists past launches",
            )
        _check_start(name, argv)
        by_srun = not batch and options["runtime"] != WITHOUT_SLURM
        if by_srun:
            check_step(os.environ)
        if by_srun and quiet and session.runner.has("srun"):
            options["extra"] = (*options["extra"], "--quiet")
        request = _request(
            ctx,
            name,
            mode,
            mounts,
            argv,
            batch=batch,
            home=home,
            every=every,
            dry_run=dry_run,
            **options,
        )
        launch = plan_launch(request, lambda: session.catalog, session.site, session.runner)
        if check:
            _check(launch, as_json)
        elif dry_run:
            _show(launch, as_json, batch=batch, every=every)
        else:
            _start(launch, as_json, batch=batch, quiet=quiet)
    except HpcstackError as error:
        if error.exit_code != WRONG_INPUT:
            error.exit_code = OWN_FAILURE
        raise


WRONG_INPUT = 2


def _check_start(name: str, argv: tuple[str, ...]) -> None:
    """Raise InputError where there is nothing to run, or no folder to run it in."""
    from hpcstack.core.errors import InputError

    if not argv:
        raise InputError("what is to be run?", _example(name))
    if not os.path.exists(os.curdir):  # noqa: PTH110
        raise InputError("the folder that this was started in is gone", "cd to one that exists")


def _show(launch: PlannedLaunch, as_json: bool, *, batch: bool, every: bool) -> None:
    """Print what LAUNCH would run."""
    shown = launch.script if every else launch.outline
    if why := launch.plan.slurm_refuses:
        say(f"NOTE: Slurm would refuse it today: {why}")
    answer(launch.document(), as_json, lambda: shown(batch=batch))


def _start(launch: PlannedLaunch, as_json: bool, *, batch: bool, quiet: bool) -> None:
    """Run LAUNCH and wait for it, or submit it as a BATCH job."""
    from hpcstack.core.errors import InputError
    from hpcstack.launch.commands import advise

    if said := launch.missing():
        raise InputError(said, advise(launch.command, Path.cwd()))
    if launch.added:
        with show_progress("adding") as progress:
            launch.prepare(progress)
    if batch:
        _submit(launch, as_json, quiet=quiet)
    else:
        _run(launch, quiet=quiet)


def _example(name: str) -> str:
    """What to type where nothing follows a `--`; NAME may be a command."""
    import shlex

    if re.search(COMMAND, name):
        return f"put `--` before the command: hpcstack launch -- {shlex.quote(name)}"
    if name.endswith((".sbatch", ".slurm")):
        return f"{name} is a job script: sbatch {shlex.quote(name)}"
    return f"hpcstack launch {name or 'STACK'} -- train.py, or --template ddp"


OF_JOBS = ("ntasks", "ntasks_per_node", "gpus_per_node", "gpus", "cpus_per_task", "partition", "account", "qos",
           "reservation", "constraint", "nodelist", "time", "exclusive")  # fmt: skip
OF_LAUNCHES = {
    "mode": "--mode", "elastic": "--elastic", "restarts": "--restarts", "mounts": "--mount", "packages": "--with",
    "stage": "--stage", "stage_in": "--stage-in", "grace": "--grace", "watchdog": "--watchdog",
    "spare": "--spare",
    "nproc_per_node": "--nproc-per-node",
    "runtime": "--runtime", "home": "--home", "no_bind": "--no-bind",
}  # fmt: skip


def answer_template(
    ctx: click.Context,
    name: str,
    template: str,
    options: dict[str, Any],
    argv: tuple[str, ...],
    *,
    as_json: bool,
) -> None:
    """A job script that users copy, with all that was asked for beside --template; it needs no
    image.
    """
    from hpcstack.launch.script import copied_script

    session: Session = ctx.obj
    parse_resources({**options, "batch": True})  # refused here, where it makes no sense
    typed = {key for key in (*OF_JOBS, *OF_LAUNCHES, "nodes") if _typed(ctx, key)}
    said: dict[str, str | None] = {"nodes": str(options["nodes"])} if "nodes" in typed else {}
    for key in (one for one in OF_JOBS if one in typed):
        value = options[key]
        text = "" if value is True else str(value)  # a flag has no value
        said[key.replace("_", "-")] = text if value else None
    if said.get("gpus"):
        said["gpus-per-node"] = None
    for word in (*ctx.meta["passed"], *options["extra"]):
        option, _, value = word.partition("=")
        said[option.removeprefix("--")] = value
    words = [
        word
        for key in OF_LAUNCHES
        if key in typed
        for word in _words(OF_LAUNCHES[key], options[key])
    ]
    text = copied_script(template, name, session.site, said, words, argv)
    answer({"template": template, "script": text}, as_json, lambda: text.rstrip("\n"))


def _words(option: str, value: Any) -> list[str]:
    """OPTION with its VALUE, as one types it."""
    values = value if isinstance(value, tuple) else (value,)
    if value is False:
        return [option.replace("--", "--no-", 1)]
    return [option] if value is True else [word for one in values for word in (option, str(one))]


def _typed(ctx: click.Context, key: str) -> bool:
    """Whether an option was given, be it with its default."""
    return ctx.get_parameter_source(key) is click.core.ParameterSource.COMMANDLINE


def _request(
    ctx: click.Context,
    name: str,
    mode: str,
    mounts: tuple[str, ...],
    argv: tuple[str, ...],
    *,
    packages: tuple[str, ...],
    stage: str,
    stage_in: tuple[str, ...],
    grace: int,
    watchdog: int,
    spare: int,
    no_bind: bool,
    batch: bool,
    home: bool | None,
    every: bool,
    dry_run: bool,
    **options: Any,
) -> LaunchRequest:
    """What was typed; options that are not ours go to srun or sbatch, if they know them."""
    from hpcstack.core.errors import InputError
    from hpcstack.launch.request import LaunchRequest, absolute_mount, check_srun_options

    session, passed = ctx.obj, ctx.meta["passed"]
    if passed and argv != ctx.meta["command"]:
        raise InputError(
            f"{argv[0]!r} comes before the `--`",
            "hpcstack launch [STACK] [OPTIONS] -- train.py; srun's options: --mem=10G",
        )
    mounts = tuple(map(absolute_mount, mounts))
    own = [name for param in ctx.command.params for name in param.opts]
    check_srun_options(passed, own, session.runner, batch=batch)
    asked = parse_resources({**options, "batch": batch, "extra": (*options["extra"], *passed)})
    return LaunchRequest(
        argv,
        asked,
        name=name,
        mode=mode,
        runtime=options["runtime"],
        mounts=mounts,
        packages=packages,
        stage=stage,
        stage_in=stage_in,
        grace=grace,
        watchdog=watchdog,
        spare=spare,
        bind=not no_bind,
        batch=batch,
        home=home,
        all_stderr=every,
        only_shown=dry_run,
    )


def _check(launch: PlannedLaunch, as_json: bool) -> None:
    said = launch.refusal()
    notes = launch.warnings()
    document = {"ok": not said, "said": said, "notes": notes, "argv": list(launch.plan.argv)}
    answer(
        document,
        as_json,
        lambda: said or "\n".join(["it could start", *(f"NOTE: {note}" for note in notes)]),
    )
    raise click.exceptions.Exit(1 if said else 0)


def _tell_notes(launch: PlannedLaunch, *, quiet: bool) -> None:
    """What a user must know; QUIET: of that, what may not be as he expects."""
    for note in [] if quiet else launch.notes():
        say(note)
    for warning in launch.warnings():
        say(f"NOTE: {warning}")


def _submit(launch: PlannedLaunch, as_json: bool, *, quiet: bool) -> None:
    done = launch.submit()
    _tell_notes(launch, quiet=quiet)
    if not quiet:
        say(f"the script is {done.script}")
        say(f"it writes to {done.output}: hpcstack logs {done.job}")
    answer(
        {"job": done.job, "folder": str(done.folder), "output": str(done.output)},
        as_json,
        lambda: done.job,
    )


def _run(launch: PlannedLaunch, *, quiet: bool) -> None:
    _tell_notes(launch, quiet=quiet)
    if (fit := launch.plan.fit) and fit.kind != "native" and not (quiet and fit.certain):
        say(f"driver and image: {fit}")
    status, last = launch.run()
    if last:
        click.echo(sanitize_for_terminal(last), err=True)
    raise click.exceptions.Exit(status)
