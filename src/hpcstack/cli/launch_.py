"""`hpcstack launch`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_launching.py.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from hpcstack.cli.choices import OptionalChoice
from hpcstack.cli.launching import (
    plan_request,
    prepare_launch,
    run_launch,
    say_notes,
    show_plan,
)
from hpcstack.cli.resources import (
    COMMAND,
    Passing,
    parse_resources,
    resource_options,
    write_directive,
)
from hpcstack.cli.session import Session, answer, json_option, optional_stack, say
from hpcstack.core.names import MODES, STAGES, TEMPLATES, WITHOUT_SLURM

if TYPE_CHECKING:
    from hpcstack.launch.request import LaunchRequest
    from hpcstack.launch.run import PlannedLaunch
    from hpcstack.render.job_template import Option


@click.command("launch", cls=Passing)
@optional_stack
@resource_options
@click.option(
    "--mode",
    default="",
    type=OptionalChoice(MODES),
    show_default="the recipe's",
    help="How the ranks are started.",
)
@click.option(
    "--elastic",
    default="",
    metavar="MIN:MAX",
    help="Run on MIN to MAX nodes, and go on when a node fails (mode torchrun).",
)
@click.option(
    "--restarts",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    metavar="NUMBER",
    help="Let torchrun restart failed workers this many times (mode torchrun).",
)
@click.option(
    "--mount",
    "mounts",
    multiple=True,
    metavar="SOURCE:TARGET",
    help="Mount SOURCE at TARGET; of a squashfs file, its contents. May be given several times.",
)
@click.option(
    "--home/--no-home",
    default=None,
    show_default="as site.yaml says, else mount it",
    help="Mount the home directory, or do not.",
)
@click.option(
    "--slurm/--no-slurm",
    default=None,
    show_default="as the recipe or site.yaml says",
    help="Let srun, squeue and the like be typed in the image, or do not.",
)
@click.option(
    "--with",
    "packages",
    multiple=True,
    metavar="PACKAGE",
    help="Add this pip package, or those of a requirements file. May be given several times.",
)
@click.option(
    "--project",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Add your project in FOLDER, and the packages that it needs.",
)
@click.option(
    "--stage",
    default="",
    type=OptionalChoice(STAGES),
    show_default="the site's",
    help="How to bring the image to the nodes' own disks first.",
)
@click.option(
    "--stage-in",
    "stage_in",
    multiple=True,
    metavar="SOURCE:TARGET",
    help="Copy SOURCE to the nodes' own disks first, and mount it at TARGET.",
)
@click.option(
    "--grace",
    default=0,
    type=click.IntRange(0, 65535),
    metavar="SECONDS",
    help="Send SIGUSR1 to every rank this many seconds before the time limit.",
)
@click.option(
    "--watchdog",
    default=0,
    type=click.IntRange(0),
    metavar="SECONDS",
    help="After this many seconds without output, report what each rank is doing and end the step.",
)
@click.option(
    "--debug",
    default=None,
    type=click.IntRange(0),
    metavar="RANK",
    help="Stop this rank in a debugger: `hpcstack enter --debug` talks to it.",
)
@click.option(
    "--spare",
    default=0,
    type=click.IntRange(0),
    metavar="NODES",
    help="Request this many extra nodes, and leave out nodes that are not healthy.",
)
@click.option(
    "--requeue-without",
    is_flag=True,
    help="If a node is to blame when the job fails, put the job back into the queue without it.",
)
@click.option(
    "-Q",
    "--quiet",
    is_flag=True,
    help="Print only what you may not expect, and what failed. Also passed on to srun.",
)
@click.option("--no-bind", is_flag=True, help="Do not bind ranks to the cores near their GPUs.")
@click.option("--batch", is_flag=True, help="Submit it as a batch job, and print the job's number.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Only show what would be run.",
)
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Show all that a failing step writes to stderr; with --dry-run, the whole script.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Only say whether it could start: limits, image, command. Exit code 1: it could not.",
)
@click.option(
    "--template",
    default="",
    type=OptionalChoice(TEMPLATES),
    help="Print a job script of this kind, for you to copy.",
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
    """Run a command in a stack's image, under srun where there is Slurm.

    The command is waited for, and its status is returned. A .py file or -m MODULE is run by Python.
    STACK is the loaded module's by default.

    Modes: torchrun and deepspeed start one task on each node, which starts the ranks there.
    task-per-gpu and mpi start each rank as a Slurm task. plain runs the command as it is.

    Any other option of srun (of sbatch with --batch) may stand before the `--`, as --mem=10G.
    """
    from hpcstack.core.errors import HpcstackError, InputError
    from hpcstack.launch.commands import check_step
    from hpcstack.launch.plan import OWN_FAILURE

    session: Session = ctx.obj
    try:
        if template:
            given = {**options, "mode": mode, "mounts": mounts, "home": home}
            answer_template(ctx, name, template, given, argv, as_json=as_json)
            return

        if as_json and not (batch or dry_run or check):
            raise InputError(
                "--json goes with --dry-run, --check, --batch or --template: else stdout is the "
                "command's",
                "hpcstack jobs --json lists past launches",
            )
        _check_start(name, argv)

        by_srun = not batch and options["runtime"] != WITHOUT_SLURM
        if by_srun:
            check_step(os.environ)
        if by_srun and quiet and session.runner.has("srun"):
            options["extra"] = (*options["extra"], "--quiet")

        request = make_request(
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
        launch = plan_request(session, request)
        if check:
            _answer_check(launch, as_json)
        elif dry_run:
            show_plan(launch, as_json, batch=batch, every=every)
        else:
            _start(launch, as_json, batch=batch, quiet=quiet)
    except HpcstackError as error:
        # The exit code of a launch is the command's own. A failure of hpcstack's ends with 125, so
        # that the two can be told apart.
        if error.exit_code != WRONG_INPUT:
            error.exit_code = OWN_FAILURE
        raise


WRONG_INPUT = 2


def _check_start(name: str, argv: tuple[str, ...]) -> None:
    """Raise InputError where there is nothing to run, or no folder to run it in."""
    from hpcstack.core.errors import InputError

    if not argv:
        raise InputError("what is to be run?", _suggest_command(name), page="write-a-job-script")
    if not os.path.exists(os.curdir):  # noqa: PTH110
        raise InputError("the folder that this was started in is gone", "cd to one that exists")


def _start(launch: PlannedLaunch, as_json: bool, *, batch: bool, quiet: bool) -> None:
    """Run LAUNCH and wait for it, or submit it as a BATCH job."""
    prepare_launch(launch)
    if batch:
        _submit(launch, as_json, quiet=quiet)
    else:
        run_launch(launch, quiet=quiet)


def _suggest_command(name: str) -> str:
    """Return what to type where no command was given. NAME may be a command without its `--`."""
    import shlex

    if re.search(COMMAND, name):
        return f"put `--` before the command: hpcstack launch -- {shlex.quote(name)}"
    if name.endswith((".sbatch", ".slurm")):
        return f"{name} is a job script: sbatch {shlex.quote(name)}"
    return f"hpcstack launch {name or 'STACK'} -- train.py, or --template ddp"


# What a job script that users copy keeps of their options: those that become #SBATCH lines, and
# those that stay on its `hpcstack launch` line.
OF_JOBS = (
    "ntasks", "ntasks_per_node", "gpus_per_node", "gpus", "cpus_per_task",
    "partition", "account", "qos", "reservation", "constraint", "nodelist", "time", "exclusive",
)  # fmt: skip
OF_LAUNCHES = {
    "mode": "--mode",
    "elastic": "--elastic",
    "restarts": "--restarts",
    "mounts": "--mount",
    "packages": "--with",
    "project": "--project",
    "stage": "--stage",
    "stage_in": "--stage-in",
    "grace": "--grace",
    "watchdog": "--watchdog",
    "debug": "--debug",
    "spare": "--spare",
    "requeue_without": "--requeue-without",
    "nproc_per_node": "--nproc-per-node",
    "runtime": "--runtime",
    "home": "--home",
    "slurm": "--slurm",
    "no_bind": "--no-bind",
}


def answer_template(
    ctx: click.Context,
    name: str,
    template: str,
    options: dict[str, Any],
    argv: tuple[str, ...],
    *,
    as_json: bool,
) -> None:
    """Print a job script for users to copy, with every option that was given beside --template.

    No image is needed for it.
    """
    from hpcstack.launch.domains import place_job
    from hpcstack.launch.script import make_copied_script

    session: Session = ctx.obj
    extra = (*ctx.meta["passed"], *options["extra"])
    # Raises for what makes no sense
    resources = parse_resources({**options, "batch": True, "extra": extra})
    typed = {key for key in (*OF_JOBS, *OF_LAUNCHES, "nodes") if _was_typed(ctx, key)}

    # {option of sbatch: value}; None takes a line of the template away
    directives: dict[str, str | None] = {}
    if "nodes" in typed:
        directives["nodes"] = str(options["nodes"])
    for key in OF_JOBS:
        if key not in typed:
            continue
        directives[key.replace("_", "-")] = write_directive(options[key])
    # `-G 0`, for none, takes the template's own line away, too.
    if "gpus" in typed and "gpus_per_node" not in typed:
        directives["gpus-per-node"] = None
    for word in extra:
        option, _, value = word.partition("=")
        directives[option.removeprefix("--")] = value
    placement = place_job(resources, session.site, session.runner)
    if placement.segment:
        directives["segment"] = placement.segment.value
    if placement.warning:
        say(f"NOTE: {placement.warning}")

    words: list[Option] = []
    for key, option in OF_LAUNCHES.items():
        if key in typed:
            words += _list_options(option, options[key])

    stack = session.naming.find_stack(name).stack
    text = make_copied_script(template, stack, session.site, directives, words, argv)
    answer({"template": template, "script": text}, as_json, lambda: text.rstrip("\n"))


def _list_options(option: str, value: object) -> list[Option]:
    """Return OPTION with its VALUE, as click parsed it, once for each of several."""
    if value is False:
        return [(option.replace("--", "--no-", 1), None)]
    if value is True:
        return [(option, None)]

    values = value if isinstance(value, tuple) else (value,)
    return [(option, str(one)) for one in values]


def _was_typed(ctx: click.Context, key: str) -> bool:
    """Return whether an option was given on the command line, be it with its default value."""
    return ctx.get_parameter_source(key) is click.core.ParameterSource.COMMANDLINE


def make_request(
    ctx: click.Context,
    name: str,
    mode: str,
    mounts: tuple[str, ...],
    argv: tuple[str, ...],
    *,
    packages: tuple[str, ...],
    project: Path | None,
    stage: str,
    stage_in: tuple[str, ...],
    grace: int,
    watchdog: int,
    debug: int | None,
    spare: int,
    requeue_without: bool,
    no_bind: bool,
    batch: bool,
    home: bool | None,
    slurm: bool | None,
    every: bool,
    dry_run: bool,
    **options: Any,
) -> LaunchRequest:
    """Return what was typed as a request. Options that are not ours go to srun or sbatch.

    Raise InputError for options that those do not know either.
    """
    from hpcstack.core.errors import InputError
    from hpcstack.launch.request import LaunchRequest, check_srun_options, resolve_mount

    session: Session = ctx.obj
    passed = ctx.meta["passed"]
    # `--mem 10G` instead of `--mem=10G`: click took `10G` for the first word of the command
    if passed and argv != ctx.meta["command"]:
        raise InputError(
            f"{argv[0]!r} comes before the `--`",
            "hpcstack launch [STACK] [OPTIONS] -- train.py; srun's options: --mem=10G",
            page="write-a-job-script",
        )

    mounts = tuple(map(resolve_mount, mounts))
    own = [option for param in ctx.command.params for option in param.opts]
    check_srun_options(passed, own, session.runner, batch=batch)
    asked = parse_resources({**options, "batch": batch, "extra": (*options["extra"], *passed)})
    requeue: tuple[str, ...] = ()
    if requeue_without:
        requeue = (*session.command_on(options["partition"]), "requeue")
    return LaunchRequest(
        argv,
        asked,
        name=name,
        mode=mode,
        runtime=options["runtime"],
        mounts=mounts,
        packages=packages,
        project=project,
        stage=stage,
        stage_in=stage_in,
        grace=grace,
        watchdog=watchdog,
        debug=debug,
        spare=spare,
        requeue=requeue,
        bind=not no_bind,
        batch=batch,
        home=home,
        slurm=slurm,
        all_stderr=every,
        only_shown=dry_run,
    )


def _answer_check(launch: PlannedLaunch, as_json: bool) -> NoReturn:
    """Say whether LAUNCH could start, and end: with 1 if it could not."""
    refusal = launch.refusal()
    notes = launch.warnings()
    lines = [refusal] if refusal else ["it could start", *(f"NOTE: {note}" for note in notes)]
    document = {"ok": not refusal, "said": refusal, "notes": notes, "argv": list(launch.plan.argv)}
    answer(document, as_json, lambda: "\n".join(lines))
    raise click.exceptions.Exit(1 if refusal else 0)


def _submit(launch: PlannedLaunch, as_json: bool, *, quiet: bool) -> None:
    """Submit LAUNCH as a batch job, and print the job's number."""
    done = launch.submit()
    say_notes(launch, quiet=quiet)
    if not quiet:
        say(f"the script is {done.script}")
        say(f"it writes to {done.output}: hpcstack logs {done.job}")

    document = {"job": done.job, "folder": str(done.folder), "output": str(done.output)}
    answer(document, as_json, lambda: done.job)
