"""`hpcstack jupyter`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_pages_of_jobs.py.
"""

from __future__ import annotations

from typing import Any

import click

from hpcstack.cli.interactive import Interactive, takes_launch
from hpcstack.cli.session import json_option


@click.command(
    "jupyter", cls=Interactive, options_metavar="[STACK] [OPTIONS OF launch] [-- ARGUMENTS...]"
)
@takes_launch
@json_option
@click.pass_context
def command(
    ctx: click.Context, /, name: str, argv: tuple[str, ...], as_json: bool, **options: Any
) -> None:
    """Start JupyterLab in a stack's image, as a job, and say how to reach it.

    STACK is the loaded module's by default. The options are those of `hpcstack launch`, such as -t
    4:00:00 --gpus-per-node 1 --project DIR. What follows a `--` is for JupyterLab.

    Nothing listens on the network: JupyterLab is on a socket that only you can open, and the ssh
    line that is printed goes there.
    """
    from hpcstack.cli.serving import serve_page

    serve_page(ctx, "jupyter", name, ("jupyter", "lab", *argv), options, as_json=as_json)
