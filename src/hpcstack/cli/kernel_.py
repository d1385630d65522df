"""`hpcstack kernel`: kernels of Jupyter's in a stack's image.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_kernels.py.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcstack.cli.interactive import parse_words, runs_under_slurm
from hpcstack.cli.launching import plan_request, prepare_launch
from hpcstack.cli.session import Session, answer, say
from hpcstack.core.errors import InputError, MissingToolError

if TYPE_CHECKING:
    from collections.abc import Sequence


class KernelVerb(click.Command):
    """A verb that takes the options of `hpcstack launch` beside its own, and hands them on."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {name for param in self.params for name in param.opts}
        flags = {name for param in self.params if _is_flag(param) for name in param.opts}
        mine: list[str] = []
        others: list[str] = []
        words = iter(args)
        for word in words:
            name = word.partition("=")[0]
            if name not in own and word not in ("--help", "-h"):
                others.append(word)
                continue
            mine.append(word)
            if name == word and name not in flags and name in own:
                mine += [value for value in [next(words, None)] if value is not None]
        ctx.meta["own"] = others
        return super().parse_args(ctx, mine)


def _is_flag(param: click.Parameter) -> bool:
    return isinstance(param, click.Option) and bool(param.is_flag)


@click.group("kernel")
def command() -> None:
    """Run Jupyter kernels in a stack's image, from JupyterHub, Open OnDemand or VS Code."""


@command.command("install", cls=KernelVerb, options_metavar="[STACK] [OPTIONS] [OPTIONS OF launch]")
@click.option("--name", default="", metavar="NAME", show_default="hpcstack-STACK")
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
    ctx: click.Context, name: str, display_name: str, prefix: Path | None, as_json: bool
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
    own: list[str] = ctx.meta["own"]
    by_slurm = runs_under_slurm(session, own)
    # Whatever allocation this shell is in, that of the kernel is another one.
    of_a_job = ["-N", "1", *(["--batch"] if by_slurm else [])]
    request = parse_words(session, [*of_a_job, *own, "--mode", "plain", "--", *COMMAND])
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
    name = name or f"hpcstack-{Path(stack).name.removesuffix('.yaml')}"
    name = re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip(".")
    if not name:
        raise InputError("--name: letters and digits are wanted", "--name mine", page="run-jupyter")
    if prefix:
        os.umask(0o022)  # it is for everybody
    folder = find_kernels_folder(prefix, os.environ) / name
    of_slurm = ["--by-slurm"] if by_slurm else []
    start = [*session.command_on(""), "kernel", "start", stack, *of_slurm, *words]
    path = write_kernel(folder, display_name or f"{stack} (hpcstack)", start, os.environ)
    document = {"name": folder.name, "path": str(path), "argv": start}
    answer(document, as_json, lambda: f"{path}\nRemove it:  rm -r {folder}")


@command.command("start", cls=KernelVerb, options_metavar="[STACK] [OPTIONS OF launch] -f FILE")
@click.option("-f", "file", type=click.Path(path_type=Path), required=True, metavar="FILE")
@click.option("--by-slurm", is_flag=True, help="Refuse to start where Slurm is not to be had.")
@click.pass_context
def start_(ctx: click.Context, file: Path, by_slurm: bool) -> None:
    """Start a kernel that is connected as FILE says; Jupyter calls this."""
    from hpcstack.launch.kernel import (
        COMMAND,
        find_place,
        read_connection,
        run_kernel,
        with_kernel,
    )

    session: Session = ctx.obj
    own: Sequence[str] = ctx.meta["own"]
    outside = read_connection(file)
    is_by_slurm = runs_under_slurm(session, own)
    if by_slurm and not is_by_slurm:
        raise MissingToolError(
            "the kernel was installed to run under Slurm, and there is no srun on PATH here",
            "give Jupyter's service the PATH that a login has",
            page="run-jupyter",
        )
    place = find_place(os.environ, by_slurm=is_by_slurm)
    request = parse_words(session, [*own, "--mode", "plain", "--", *COMMAND])
    request, inside = with_kernel(request, outside, place, os.environ)
    launch = plan_request(session, request)
    prepare_launch(launch)

    def make_proxy(job: str) -> list[str]:
        return [*session.command_on(""), "enter", "--ssh", job]

    status, last = run_kernel(launch, outside, inside, make_proxy, say)
    if last:
        say(last)
    raise click.exceptions.Exit(status)
