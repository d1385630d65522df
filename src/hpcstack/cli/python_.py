"""`hpcstack python`."""

from __future__ import annotations

import click

from hpcstack.cli.interactive import Interactive, start_program


@click.command(
    "python", cls=Interactive, options_metavar="[STACK] [OPTIONS OF launch] [-- ARGUMENTS...]"
)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Python in a stack's image, on a node of Slurm's where there is Slurm; its arguments follow a
    `--`.

    STACK is the loaded module's by default; the options are those of `hpcstack launch`, e.g. -t 60
    --gpus-per-node 1.
    """
    start_program(ctx, "python3")
