"""Verbs that take the options of `hpcstack launch`: shell, python, jupyter and others."""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, NoReturn

import click

from hpcstack.cli.session import say
from hpcstack.core.errors import InputError
from hpcstack.core.names import WITHOUT_SLURM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcstack.cli.session import Session
    from hpcstack.launch.request import LaunchRequest


class Interactive(click.Command):
    """A verb that takes the options of `hpcstack launch`, and after a `--` those of its program.

    It parses none of them itself: `start_program` hands them to `launch`, which refuses what is
    wrong.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        cut = args.index("--") if "--" in args else _begins(args)
        if cut < len(args) and args[cut] != "--":
            args = [*args[:cut], "--", *args[cut:]]

        own = args[:cut]
        ctx.meta["own"] = own
        ctx.meta["arguments"] = args[cut + 1 :]
        wants_help = "--help" in own or "-h" in own
        return super().parse_args(ctx, ["--help"] if wants_help else [])


def _begins(args: list[str]) -> int:
    """Return the index in ARGS, which have no `--`, of the first word that is for the program.

    That is a script, -m MODULE, or -c CODE. (-c NUMBER is launch's --cpus-per-task.) It is the
    length of ARGS where nothing is.
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
        is_value = n > 0 and args[n - 1] in valued
        is_option = word.startswith("-") and word not in ("-m", "-c")
        if is_value or is_option:
            continue

        if word == "-m" or word.endswith((".py", ".sh")):
            return n
        after = args[n + 1] if n + 1 < len(args) else ""
        if word == "-c" and after and not after.isdigit():
            return n

    return len(args)


def note_packages(
    own: Sequence[str], arguments: Sequence[str], verb: str, *, on_terminal: bool
) -> str:
    """Return a note on how to keep packages in what VERB starts; empty where it is not needed.

    It is for a person on a terminal who has not asked for packages (--with, --project), and who may install
    some by pip in there: later launches do not see those.
    """
    asked = any(word.partition("=")[0] in ("--with", "--project") for word in own)
    if asked or arguments or not on_terminal:
        return ""

    return (
        f"NOTE: what pip installs in here is not seen by later launches: hpcstack {verb} --with "
        f"PACKAGE keeps it"
    )


def runs_under_slurm(session: Session, own: Sequence[str]) -> bool:
    """Whether a launch with the options OWN is started by srun."""
    runtime = session.site.runtime
    for word, value in itertools.pairwise([*own, ""]):
        name, sign, said = word.partition("=")
        if name == "--runtime":
            runtime = said if sign else value
    return session.runner.has("srun") and runtime != WITHOUT_SLURM


def parse_words(session: Session, words: Sequence[str]) -> LaunchRequest:
    """Return the request that WORDS, as they would be typed after `hpcstack launch`, make."""
    from hpcstack.cli.launch_ import command, make_request

    ctx = command.make_context("hpcstack launch", list(words), obj=session)
    options = dict(ctx.params)
    for option in ("check", "template"):
        if options[option]:
            raise InputError(f"--{option} is for hpcstack launch", "leave it out")
    for name in ("as_json", "check", "quiet", "template"):  # say what is done with the launch
        del options[name]
    return make_request(ctx, **options)


def start_program(ctx: click.Context, program: str) -> NoReturn:
    """Run `hpcstack launch` with PROGRAM as its command, as one task; end with its status.

    srun gives the task a terminal (--pty) where there is one here. The local runtime needs no such
    option.
    """
    from hpcstack.cli.launch_ import command as launch

    session: Session = ctx.obj
    own, arguments = ctx.meta["own"], ctx.meta["arguments"]
    on_terminal = sys.stdin.isatty()

    needs_pty = on_terminal and runs_under_slurm(session, own)

    note = note_packages(own, arguments, ctx.info_name or program, on_terminal=on_terminal)
    if note:
        say(note)

    options = ["--mode", "plain"]
    if needs_pty:
        options.append("--pty")
    line = [*own, *options, "--", program, *arguments]
    status = launch.main(
        args=line, prog_name=f"hpcstack {ctx.info_name}", standalone_mode=False, obj=session
    )
    raise click.exceptions.Exit(status if isinstance(status, int) else 0)
