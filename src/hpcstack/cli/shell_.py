"""`hpcstack shell`.

Tested in tests/unit/cli/test_verbs.py.
"""

from __future__ import annotations

from typing import Any

import click

from hpcstack.cli.interactive import Interactive, start_program, takes_launch


@click.command(
    "shell", cls=Interactive, options_metavar="[STACK] [OPTIONS OF launch] [-- ARGUMENTS...]"
)
@takes_launch
@click.pass_context
def command(ctx: click.Context, /, name: str, argv: tuple[str, ...], **options: Any) -> None:
    """Open a shell in a stack's image, on a compute node where there is Slurm.

    STACK is the loaded module's by default. The options are those of `hpcstack launch`, such as -t
    60 --gpus-per-node 1. What follows a `--` is for the shell, which is bash.
    """
    start_program(ctx, "bash", name, argv, options)
