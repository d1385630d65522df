"""`hpcstack tensorboard`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_pages_of_jobs.py.
"""

from __future__ import annotations

from pathlib import Path

import click

from hpcstack.cli.interactive import Interactive
from hpcstack.core.errors import InputError

WITH_FOLDERS = ("--project", "--with", "--mount", "--stage-in")


@click.command(
    "tensorboard",
    cls=Interactive,
    options_metavar="FOLDER [STACK] [OPTIONS OF launch] [-- ARGUMENTS...]",
)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Show the TensorBoard logs in FOLDER, by a job, and say how to reach it.

    STACK is the loaded module's by default. The options are those of `hpcstack launch`, such as -t
    60. What follows a `--` is for TensorBoard.

    Nothing listens on the network: TensorBoard is on a socket that only you can open, and the ssh
    line that is printed goes there.
    """
    from hpcstack.cli.serving import serve_page

    own = ctx.meta["own"]
    # The value of an option may be a folder, too.
    places = [n for n, word in enumerate(own) if n == 0 or own[n - 1] not in WITH_FOLDERS]
    at = next((n for n in places if Path(own[n]).is_dir()), -1)
    if at < 0:
        wrong = f"{own[0]} is no folder" if own else "which logs are to be shown?"
        raise InputError(wrong, "hpcstack tensorboard runs/ STACK", page="run-jupyter")
    folder = Path(own[at]).resolve()
    ctx.meta["own"] = [*own[:at], *own[at + 1 :], "--mount", f"{folder}:{folder}"]
    serve_page(ctx, "tensorboard", ("tensorboard", "--logdir", str(folder)))
