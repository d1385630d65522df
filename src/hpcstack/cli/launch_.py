"""`hpcstack launch`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_launching.py.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, NoReturn

import click

from hpcstack.cli.choices import OptionalChoice
from hpcstack.cli.launch_options import launch_options, make_request, own_failures
from hpcstack.cli.launching import (
    plan_request,
    prepare_launch,
    run_launch,
    say_notes,
    show_plan,
)
from hpcstack.cli.resources import COMMAND, Passing, parse_resources, write_directive
from hpcstack.cli.session import Session, answer, json_option, optional_stack, say
from hpcstack.core.names import TEMPLATES

if TYPE_CHECKING:
    from hpcstack.launch.run import PlannedLaunch
    from hpcstack.render.job_template import Option


@click.command("launch", cls=Passing)
@optional_stack
@launch_options
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
    check: bool,
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
    from hpcstack.core.errors import InputError

    batch, quiet = options["batch"], options["quiet"]
    with own_failures():
        if template:
            answer_template(ctx, name, template, options, argv, as_json=as_json)
            return

        if as_json and not (batch or options["only_shown"] or check):
            raise InputError(
                "--json goes with --dry-run, --check, --batch or --template: else stdout is the "
                "command's",
                "hpcstack jobs --json lists past launches",
            )
        _check_start(name, argv)
        launch = plan_request(ctx.obj, make_request(ctx, name, argv, options))
        if check:
            _answer_check(launch, as_json)
        elif options["only_shown"]:
            show_plan(launch, as_json)
        else:
            _start(launch, as_json, batch=batch, quiet=quiet)


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


# The options of a job script that users copy which become #SBATCH lines; the others stay on its
# `hpcstack launch` line
OF_JOBS = (
    "ntasks", "ntasks_per_node", "gpus_per_node", "gpus", "cpus_per_task",
    "partition", "account", "qos", "reservation", "constraint", "nodelist", "time", "exclusive",
)  # fmt: skip
OF_THE_SCRIPT = ("nodes", "extra", "batch", "only_shown", "all_stderr", "quiet")


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
    from hpcstack.launch.request import check_srun_options
    from hpcstack.launch.script import check_directives, make_copied_script

    session: Session = ctx.obj
    extra = (*ctx.meta["passed"], *options["extra"])
    # Raises for what makes no sense
    resources = parse_resources({**options, "batch": True, "extra": extra})
    typed = {param.name: param for param in ctx.command.params if _was_typed(ctx, param.name or "")}

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
    own = [name for param in ctx.command.params for name in param.opts]
    check_srun_options(extra, own, session.runner, batch=True)
    check_directives(directives)
    placement = place_job(resources, session.site, session.runner)
    if placement.segment:
        directives["segment"] = placement.segment.value
    if placement.warning:
        say(f"NOTE: {placement.warning}")

    words: list[Option] = []
    for key, param in typed.items():
        if key in options and key not in (*OF_JOBS, *OF_THE_SCRIPT):
            words += _list_options(max(param.opts, key=len), options[key])

    stack = session.naming.find_stack(name).stack
    text = make_copied_script(template, stack, session.site, directives, words, argv)
    answer({"template": template, "script": text}, as_json, lambda: text.rstrip("\n"))


def _list_options(option: str, value: object) -> list[Option]:
    """Return OPTION with its VALUE, as click parsed it, once for each of several."""
    if value is False and not option.startswith("--no-"):
        return [(option.replace("--", "--no-", 1), None)]
    if isinstance(value, bool):
        return [(option, None)]

    values = value if isinstance(value, tuple) else (value,)
    return [(option, str(one)) for one in values]


def _was_typed(ctx: click.Context, key: str) -> bool:
    """Return whether an option was given on the command line, be it with its default value."""
    return ctx.get_parameter_source(key) is click.core.ParameterSource.COMMANDLINE


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
