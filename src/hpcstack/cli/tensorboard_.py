"""`hpcstack tensorboard`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_pages_of_jobs.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hpcstack.cli.interactive import Interactive, takes_launch
from hpcstack.cli.session import json_option
from hpcstack.core.errors import InputError


@click.command(
    "tensorboard",
    cls=Interactive,
    options_metavar="FOLDER [STACK] [OPTIONS OF launch] [-- ARGUMENTS...]",
)
@click.argument("folder", metavar="FOLDER", default="")
@takes_launch
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    folder: str,
    name: str,
    argv: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Show the TensorBoard logs in FOLDER, by a job, and say how to reach it.

    STACK is the loaded module's by default. The options are those of `hpcstack launch`, such as -t
    60. What follows a `--` is for TensorBoard.

    Nothing listens on the network: TensorBoard is on a socket that only you can open, and the ssh
    line that is printed goes there.
    """
    from hpcstack.cli.serving import serve_page

    if not Path(folder).is_dir() and Path(name).is_dir() and name:
        folder, name = name, folder  # the other way round
    if not folder or not Path(folder).is_dir():
        wrong = f"{folder} is no folder" if folder else "which logs are to be shown?"
        raise InputError(wrong, "hpcstack tensorboard runs/ STACK", page="run-jupyter")
    logs = Path(folder).resolve()
    mounts = (*options["mounts"], f"{logs}:{logs}")
    command = ("tensorboard", "--logdir", str(logs), *argv)
    serve_page(ctx, "tensorboard", name, command, {**options, "mounts": mounts}, as_json=as_json)
