"""Programs that a person talks to, in a stack's image: `hpcstack shell`, `hpcstack python`."""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING

import click

from hpcstack.cli.session import say
from hpcstack.core.names import WITHOUT_SLURM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcstack.cli.session import Session


class Interactive(click.Command):
    """A verb whose words are those of `hpcstack launch`, and the program's own after a `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        cut = args.index("--") if "--" in args else _begins(args)
        if cut < len(args) and args[cut] != "--":
            args = [*args[:cut], "--", *args[cut:]]
        ctx.meta["own"], ctx.meta["arguments"] = args[:cut], args[cut + 1 :]
        return super().parse_args(ctx, ["--help"] if {"--help", "-h"} & set(args[:cut]) else [])


def _begins(args: list[str]) -> int:
    """Where what the program is to run begins: a script, -m MODULE, -c CODE (-c NUMBER is
    --cpus-per-task).
    """
    from hpcstack.cli.launch_ import command
    from hpcstack.slurm.options import SHORT, VALUED

    valued = {
        name
        for param in command.params
        if not getattr(param, "is_flag", False)
        for name in param.opts
    }
    valued |= {*VALUED, *SHORT}
    for n, word in enumerate(args):
        if (n and args[n - 1] in valued) or (word.startswith("-") and word not in ("-m", "-c")):
            continue
        after = args[n + 1] if n + 1 < len(args) else ""
        if (
            word == "-m"
            or word.endswith((".py", ".sh"))
            or (word == "-c" and after and not after.isdigit())
        ):
            return n
    return len(args)


def note_packages(
    own: Sequence[str], arguments: Sequence[str], verb: str, *, on_terminal: bool
) -> str:
    """How packages come into what the VERB starts, for who sits before it; empty where some were
    asked for.
    """
    asked = any(word == "--with" or word.startswith("--with=") for word in own)
    if asked or arguments or not on_terminal:
        return ""
    return (
        f"NOTE: what pip installs in here is not seen again: hpcstack {verb} --with PACKAGE keeps "
        f"it"
    )


def start_program(ctx: click.Context, program: str) -> None:
    """`hpcstack launch` of PROGRAM as one task, with a terminal where we have one and Slurm is
    there.
    """
    from hpcstack.cli.launch_ import command as launch

    session: Session = ctx.obj
    own, arguments = ctx.meta["own"], ctx.meta["arguments"]
    asked_for = ("--runtime", WITHOUT_SLURM) in itertools.pairwise(own)
    here = asked_for or f"--runtime={WITHOUT_SLURM}" in own
    here = here or session.site.runtime == WITHOUT_SLURM
    terminal = sys.stdin.isatty() and session.runner.has("srun") and not here
    if note := note_packages(
        own, arguments, ctx.info_name or program, on_terminal=sys.stdin.isatty()
    ):
        say(note)
    line = [*own, "--mode", "plain", *(["--pty"] if terminal else []), "--", program, *arguments]
    status = launch.main(
        args=line, prog_name=f"hpcstack {ctx.info_name}", standalone_mode=False, obj=session
    )
    raise click.exceptions.Exit(status if isinstance(status, int) else 0)
