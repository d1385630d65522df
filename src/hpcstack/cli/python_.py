"""`hpcstack python`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_pages.py.
"""

from __future__ import annotations

from typing import Any

import click

from hpcstack.cli.interactive import Interactive, start_program, takes_launch


@click.command(
    "python", cls=Interactive, options_metavar="[STACK] [OPTIONS OF launch] [-- ARGUMENTS...]"
)
@takes_launch
@click.pass_context
def command(ctx: click.Context, /, name: str, argv: tuple[str, ...], **options: Any) -> None:
    """Run Python in a stack's image, on a compute node where there is Slurm.

    STACK is the loaded module's by default. The options are those of `hpcstack launch`, such as -t
    60 --gpus-per-node 1. Python's own arguments follow a `--`.
    """
    start_program(ctx, "python3", name, argv, options)
