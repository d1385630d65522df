"""`hpcstack launch`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.resources import resource_options, resources
from hpcstack.cli.session import Session, echo, say, stack_argument

if TYPE_CHECKING:
    from hpcstack.store import Artifact


@click.command("launch", context_settings={"ignore_unknown_options": False})
@stack_argument
@resource_options
@click.option("--mode", default="", type=click.Choice(["", "torchrun", "plain"]), help="The recipe's by default.")
@click.option("--dry-run", is_flag=True, help="Only print the line.")
@click.argument("argv", metavar="-- COMMAND [ARGUMENTS]...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_obj
def command(session: Session, /, name: str, mode: str, dry_run: bool, argv: tuple[str, ...], **options: Any) -> None:
    """Run a command in a stack's image, on Slurm's nodes where there is Slurm. Waits, and returns the step's status.

    Mode torchrun starts torchrun once a node (a .py file or -m MODULE is Python); mode plain runs the command itself.
    """
    from hpcstack.errors import HpcstackError, InputError
    from hpcstack.launch import OWN_FAILURE, plan

    try:
        artifact, why = _image(session, name)
        line = plan(
            artifact,
            argv,
            mode or artifact.mode,
            resources(options),
            session.site,
            session.runner,
            runtime=options["runtime"],
        )
        session.runner.which(line.argv[0])
    except HpcstackError as error:
        error.exit_code = error.exit_code if error.exit_code == 2 else OWN_FAILURE
        raise
    except FileNotFoundError:
        raise InputError("the folder that this was started in is gone", "cd to one that is there") from None
    if dry_run:
        echo(line.shown())
        return
    say(f"{name} ({why}) by {line.runtime} ({line.reason})")
    if line.fit and line.fit.kind != "native":
        say(f"driver and image: {line.fit}")
    raise click.exceptions.Exit(session.runner.attached(line.argv, env=line.environment))


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
