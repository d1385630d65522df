"""`hpcstack launch`."""

from __future__ import annotations

import os
from typing import Any

import click

from hpcstack.cli.resources import resource_options, resources
from hpcstack.cli.session import Session, say, stack_argument


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
    from hpcstack.errors import HpcstackError
    from hpcstack.launch import OWN_FAILURE, image_to_launch, plan

    try:
        recipe = session.recipe(name)
        artifact, why = image_to_launch(recipe.stack.full_name, session.site, session.store, os.environ)
        line = plan(
            artifact, argv, mode or recipe.stack.launch.mode, resources(options),
            session.site, session.runner, runtime=options["runtime"],
        )  # fmt: skip
        session.runner.which(line.argv[0])
    except HpcstackError as error:
        error.exit_code = error.exit_code if error.exit_code == 2 else OWN_FAILURE
        raise
    if dry_run:
        click.echo(line.shown())
        return
    say(f"{name} ({why}) by {line.runtime} ({line.reason})")
    raise click.exceptions.Exit(session.runner.attached(line.argv, env=line.environment))
