"""`hpcstack launch`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.resources import Passing, resource_options, resources
from hpcstack.cli.session import Session, answer, json_option, say, stack_argument

if TYPE_CHECKING:
    from hpcstack.launch.plan import Plan
    from hpcstack.store import Artifact

MODES = ("torchrun", "deepspeed", "task-per-gpu", "mpi", "plain")


@click.command("launch", cls=Passing)
@stack_argument
@resource_options
@click.option("--mode", default="", type=click.Choice(["", *MODES]), help="The recipe's by default.")
@click.option("--elastic", default="", metavar="MIN:MAX", help="Nodes, of which some may fail (mode torchrun).")
@click.option("--restarts", default=0, type=click.IntRange(min=0), help="How often torchrun starts its workers again.")
@click.option("--mount", "mounts", multiple=True, metavar="SOURCE:TARGET", help="Bound into the container.")
@click.option("--batch", is_flag=True, help="Submit it as a job, and print the job's number.")
@click.option("--dry-run", is_flag=True, help="Only print the script, with the reason for each line.")
@click.option("--check", is_flag=True, help="Only say whether it could start: limits, image, command. Exit 1: no.")
@json_option
@click.argument("argv", metavar="-- COMMAND [ARGUMENTS]...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def command(
    ctx: click.Context, /, name: str, mode: str, mounts: tuple[str, ...], batch: bool, dry_run: bool, check: bool,
    as_json: bool, argv: tuple[str, ...], **options: Any,
) -> None:  # fmt: skip
    """Run a command in a stack's image, on Slurm's nodes where there is Slurm. Waits, and returns the step's status.

    Modes: torchrun and deepspeed start one task a node, which starts the ranks there; task-per-gpu and mpi start each
    rank as a task of Slurm's; plain runs the command itself. A .py file or -m MODULE is Python. Any other option of
    srun (with --batch: of sbatch) stands before the `--`, written with `=`.
    """
    from hpcstack.errors import HpcstackError, InputError
    from hpcstack.launch import OWN_FAILURE, plan

    session: Session = ctx.obj
    try:
        artifact, why = _image(session, name)
        asked = resources({**options, "extra": (*options["extra"], *_passed(ctx, session, argv, batch=batch))})
        line = plan(
            artifact, argv, mode or artifact.mode, asked, session.site, session.runner, runtime=options["runtime"],
            mounts=mounts, job=batch, recorded=True,
        )  # fmt: skip
        session.runner.which(line.argv[0])
        if line.fit and not line.fit.runs:
            raise InputError(f"the image does not run on these nodes: {line.fit}", "hpcstack list shows what does")
    except HpcstackError as error:
        error.exit_code = error.exit_code if error.exit_code == 2 else OWN_FAILURE
        raise
    except FileNotFoundError:
        raise InputError("the folder that this was started in is gone", "cd to one that is there") from None
    if check:
        _check(session, line, artifact, argv, mounts, as_json)
    elif dry_run:
        _show(line, artifact, why, batch, as_json)
    elif batch:
        _submit(session, line, artifact, why, argv, as_json)
    else:
        say(f"{name} ({why}) by {line.runtime} ({line.reason})")
        if line.fit and line.fit.kind != "native":
            say(f"driver and image: {line.fit}")
        raise click.exceptions.Exit(_run(session, line, artifact, why, argv))


def _image(session: Session, name: str) -> tuple[Artifact, str]:
    """The image that NAME means. Its recipe is not needed: who loads a module need not have it; only a refusal asks."""
    from hpcstack.errors import InputError
    from hpcstack.launch import image_to_launch

    full = session.recipe(name).stack.full_name if name.endswith(".yaml") else name
    try:
        return image_to_launch(full, session.site, session.store, os.environ)
    except InputError:
        session.recipe(name)
        raise


def _passed(ctx: click.Context, session: Session, argv: tuple[str, ...], *, batch: bool) -> tuple[str, ...]:
    """The options that are not ours, as srun or sbatch knows them."""
    from hpcstack.errors import InputError, did_you_mean
    from hpcstack.launch.cluster import read_options

    passed: tuple[str, ...] = ctx.meta["passed"]
    if passed and argv != ctx.meta["command"]:
        raise InputError(f"{argv[0]!r} stands before the `--`", "an option of srun is written with =, e.g. --mem=10G")
    tools = ("srun", "sbatch") if batch else ("srun",)
    known: set[str] = set()
    for tool in tools if passed and session.runner.has("srun") else ():
        known |= read_options("\n".join(session.runner.output([tool, "--help"]).tail))
    for word in passed if known else ():
        option = word.partition("=")[0]
        if option not in known:
            near = did_you_mean(option, [*known, *(name for param in ctx.command.params for name in param.opts)])
            raise InputError(f"{option}: neither hpcstack nor {' or '.join(tools)} knows it{near}", "srun --help")
    return passed


def _show(line: Plan, artifact: Artifact, why: str, batch: bool, as_json: bool) -> None:
    from dataclasses import asdict

    from hpcstack.launch.script import directives, text

    document = {
        "runtime": line.runtime, "reason": line.reason, "mode": line.mode, "argv": list(line.argv),
        "environment": [asdict(one) for one in line.settings], "image": str(artifact.image),
    }  # fmt: skip
    answer(document, as_json, lambda: text(line, artifact, why, directives(line) if batch else ()))


def _run(session: Session, line: Plan, artifact: Artifact, why: str, argv: tuple[str, ...]) -> int:
    from hpcstack.launch import record
    from hpcstack.launch.script import text

    folder = _recorded(session, line, artifact, why, argv, text(line, artifact, why))
    status = session.runner.attached(line.argv, env={**line.environment, "HPCSTACK_RUN": str(folder)})
    record.end(folder, status)
    return status


def _recorded(session: Session, line: Plan, artifact: Artifact, why: str, argv: tuple[str, ...], script: str) -> Path:
    from hpcstack.launch import record
    from hpcstack.launch.settings import all_of

    settings = all_of(list(line.settings), artifact.environment, os.environ)
    with session.store.acting("the launch was not written down"):
        return record.begin(line, artifact, why, argv, settings, script, os.environ)


def _submit(session: Session, line: Plan, artifact: Artifact, why: str, argv: tuple[str, ...], as_json: bool) -> None:
    from hpcstack.errors import SlurmError
    from hpcstack.launch import record
    from hpcstack.launch.script import directives, text

    script = text(line, artifact, why, directives(line))
    folder = _recorded(session, line, artifact, why, argv, script)
    inherited = [name for name in os.environ if name.startswith("SLURM_JOB") or name.startswith("SLURM_STEP")]
    bare = ["env", *(word for name in inherited for word in ("-u", name))]
    done = session.runner.output(
        [*bare, "sbatch", "--parsable", str(folder / "script.sh")], env={"HPCSTACK_RUN": str(folder)}
    )
    job = done.stdout.strip().partition(";")[0]
    if done.status or not job.isdigit():
        error = SlurmError(f"sbatch refused: {' '.join(done.tail[-2:])}", f"the script is {folder / 'script.sh'}")
        raise error
    record.began(folder, job)
    say(f"{artifact.stack} ({why}) by {line.runtime} ({line.reason}); the script is {folder / 'script.sh'}")
    answer({"job": job, "folder": str(folder)}, as_json, lambda: job)


def _check(
    session: Session, line: Plan, artifact: Artifact, argv: tuple[str, ...], mounts: tuple[str, ...], as_json: bool
) -> None:
    """Limits and driver were looked at when the plan was made; here the image and the command."""
    from hpcstack.launch.inside import missing

    said = ""
    if not artifact.image.is_file():
        said = f"{artifact.image} is gone: hpcstack build {artifact.stack}"
    said = said or missing(artifact, argv, Path.cwd(), (*session.site.mounts, *mounts), session.runner)
    answer({"ok": not said, "said": said, "argv": list(line.argv)}, as_json, lambda: said or "it could start")
    raise click.exceptions.Exit(1 if said else 0)
