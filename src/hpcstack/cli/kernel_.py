"""`hpcstack kernel`: kernels of Jupyter's in a stack's image.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_kernels.py.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import click

from hpcstack.cli.interactive import Interactive, request_program, takes_launch
from hpcstack.cli.launch_options import starts_by_srun
from hpcstack.cli.launching import plan_request, prepare_launch
from hpcstack.cli.resources import NodeCount
from hpcstack.cli.session import Session, answer, say
from hpcstack.core.errors import InputError, MissingToolError


@click.group("kernel")
def command() -> None:
    """Run Jupyter kernels in a stack's image, from JupyterHub, Open OnDemand or VS Code."""


@command.command(
    "install", cls=Interactive, options_metavar="[STACK] [OPTIONS] [OPTIONS OF launch]"
)
@takes_launch
@click.option("--name", "kernel", default="", metavar="NAME", show_default="hpcstack-STACK")
@click.option("--display-name", default="", metavar="TEXT", help="Name that Jupyter shows.")
@click.option(
    "--prefix",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Install it for everybody whose Jupyter looks there, such as /usr/local.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
@click.pass_context
def install_(
    ctx: click.Context,
    /,
    name: str,
    argv: tuple[str, ...],
    kernel: str,
    display_name: str,
    prefix: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Let a Jupyter that runs outside the image start kernels in it.

    STACK is the loaded module's by default. The options of `hpcstack launch` are those of each
    kernel. In a job, such as Open OnDemand's, a kernel runs beside Jupyter and shares what the job
    has. Elsewhere it is a job of its own: give -t, -p and --gpus-per-node for it.
    """
    from hpcstack.launch.kernel import (
        COMMAND,
        Connection,
        describe_old_ipykernel,
        find_kernels_folder,
        find_place,
        list_request_words,
        make_absolute,
        with_kernel,
        write_kernel,
    )

    session: Session = ctx.obj
    _refuse_words(argv)
    by_slurm = starts_by_srun(session, options["runtime"])
    # Whatever allocation this shell is in, that of the kernel is another one.
    of_a_job = {"nodes": options["nodes"] or NodeCount(1), "batch": by_slurm or options["batch"]}
    request = request_program(ctx, name, COMMAND, {**options, **of_a_job})
    if request.only_shown:
        raise InputError("--dry-run is for hpcstack launch", "leave it out", page="run-jupyter")
    words = list_request_words(request)
    place = find_place({}, by_slurm=by_slurm)
    tried, _ = with_kernel(request, Connection({"ip": "127.0.0.1"}), place, {})
    launch = plan_request(session, tried)
    prepare_launch(launch)
    note = describe_old_ipykernel(launch.artifact.pip)
    if note:
        say(f"NOTE: {note}")

    stack = make_absolute(request.name) if request.name else launch.artifact.stack
    kernel = kernel or f"hpcstack-{Path(stack).name.removesuffix('.yaml')}"
    kernel = re.sub(r"[^A-Za-z0-9._-]", "-", kernel).lstrip(".")
    if not kernel:
        raise InputError("--name: letters and digits are wanted", "--name mine", page="run-jupyter")
    if prefix:
        os.umask(0o022)  # it is for everybody
    folder = find_kernels_folder(prefix, os.environ) / kernel
    of_slurm = ["--by-slurm"] if by_slurm else []
    start = [*session.command_on(""), "kernel", "start", stack, *of_slurm, *words]
    path = write_kernel(folder, display_name or f"{stack} (hpcstack)", start, os.environ)
    document = {"name": folder.name, "path": str(path), "argv": start}
    answer(document, as_json, lambda: f"{path}\nRemove it:  rm -r {folder}")


def _refuse_words(argv: tuple[str, ...]) -> None:
    if argv:
        raise InputError(f"{argv[0]}: a kernel runs no other program", "leave it out")


@command.command("start", cls=Interactive, options_metavar="[STACK] [OPTIONS OF launch] -f FILE")
@takes_launch
@click.option("-f", "file", type=click.Path(path_type=Path), required=True, metavar="FILE")
@click.option("--by-slurm", is_flag=True, help="Refuse to start where Slurm is not to be had.")
@click.pass_context
def start_(
    ctx: click.Context,
    /,
    name: str,
    argv: tuple[str, ...],
    file: Path,
    by_slurm: bool,
    **options: Any,
) -> None:
    """Start a kernel that is connected as FILE says; Jupyter calls this."""
    from hpcstack.launch.kernel import (
        COMMAND,
        find_place,
        read_connection,
        run_kernel,
        with_kernel,
    )

    session: Session = ctx.obj
    _refuse_words(argv)
    outside = read_connection(file)
    is_by_slurm = starts_by_srun(session, options["runtime"])
    if by_slurm and not is_by_slurm:
        raise MissingToolError(
            "the kernel was installed to run under Slurm, and there is no srun on PATH here",
            "give Jupyter's service the PATH that a login has",
            page="run-jupyter",
        )
    place = find_place(os.environ, by_slurm=is_by_slurm)
    request = request_program(ctx, name, COMMAND, options)
    request, inside = with_kernel(request, outside, place, os.environ)
    launch = plan_request(session, request)
    prepare_launch(launch)

    def make_proxy(job: str) -> list[str]:
        return [*session.command_on(""), "enter", "--ssh", job]

    status, last = run_kernel(launch, outside, inside, make_proxy, say)
    if last:
        say(last)
    raise click.exceptions.Exit(status)
