"""Verbs that take the options of `hpcstack launch`: shell, python, jupyter and others."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from hpcstack.cli.launch_options import (
    launch_options,
    make_request,
    own_failures,
    starts_by_srun,
)
from hpcstack.cli.launching import plan_request, prepare_launch, run_launch, show_plan
from hpcstack.cli.resources import Passing, join_values, list_valued
from hpcstack.cli.session import optional_stack, say
from hpcstack.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcstack.cli.session import Session
    from hpcstack.launch.request import LaunchRequest


class Interactive(Passing):
    """A verb that takes a STACK and the options of `hpcstack launch`, and after a `--` those of its
    program.

    Its help names its own options alone. A `--` is put before a script, -m MODULE or -c CODE.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        for param in self.params:
            if isinstance(param, click.Option) and param.name in NAMES:
                param.hidden = True

    def collect_usage_pieces(self, _ctx: click.Context) -> list[str]:
        return [self.options_metavar or ""]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {name for param in self.params for name in param.opts}
        valued = list_valued(self.params)
        args = join_values(args, own, valued)
        cut = args.index("--") if "--" in args else _begins(args, valued)
        return super().parse_args(ctx, [*args[:cut], "--", *args[cut:][args[cut:][:1] == ["--"] :]])


OF_LAUNCH_ALONE = ("--check", "--template", "--json")  # they say what is done with a launch


def _list_names() -> frozenset[str]:
    """Return the names of the options of a launch, as click has them."""

    @click.command()
    @launch_options
    def holder() -> None: ...

    return frozenset(str(param.name) for param in holder.params)


NAMES = _list_names()


def takes_launch(function: Callable[..., None]) -> Callable[..., None]:
    """Let a verb take a STACK, the options of a launch, and the words of its program."""
    arguments = click.argument("argv", metavar="", nargs=-1, type=click.UNPROCESSED)
    return optional_stack(launch_options(arguments(function)))


def _begins(args: list[str], valued: set[str]) -> int:
    """Return the index in ARGS, which have no `--`, of the first word that is for the program.

    That is a script, -m MODULE, or -c CODE. (-c NUMBER is launch's --cpus-per-task.) It is the
    length of ARGS where nothing is. VALUED are the options that take a value.
    """
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


def note_packages(request: LaunchRequest, verb: str, *, on_terminal: bool) -> str:
    """Return a note on how to keep packages in what VERB starts; empty where it is not needed.

    It is for a person on a terminal who has not asked for packages (--with, --project), and who may
    install some by pip in there: later launches do not see those.
    """
    asked = request.packages or request.project or len(request.command) > 1
    if asked or not on_terminal:
        return ""

    return (
        f"NOTE: what pip installs in here is not seen by later launches: hpcstack {verb} --with "
        f"PACKAGE keeps it"
    )


def request_program(
    ctx: click.Context, name: str, command: tuple[str, ...], options: dict[str, Any]
) -> LaunchRequest:
    """Return the request to run COMMAND as it is (mode plain) in the image that NAME means."""
    for word in ctx.meta["passed"]:
        option = word.partition("=")[0]
        if option in OF_LAUNCH_ALONE:
            raise InputError(f"{option} is for hpcstack launch", "leave it out")
    return make_request(ctx, name, command, {**options, "mode": "plain"})


def start_program(
    ctx: click.Context, program: str, name: str, argv: tuple[str, ...], options: dict[str, Any]
) -> NoReturn:
    """Run PROGRAM with the arguments ARGV as one task; end with its status.

    srun gives the task a terminal (--pty) where there is one here. The local runtime needs no such
    option.
    """
    session: Session = ctx.obj
    on_terminal = sys.stdin.isatty()
    if options["batch"]:
        raise InputError(
            "--batch is for hpcstack launch: nobody sits before a batch job", "leave it out"
        )
    if on_terminal and starts_by_srun(session, options["runtime"]):
        options = {**options, "extra": (*options["extra"], "--pty")}

    with own_failures():
        request = request_program(ctx, name, (program, *argv), options)
        note = note_packages(request, ctx.info_name or program, on_terminal=on_terminal)
        if note:
            say(note)
        launch = plan_request(session, request)
        if request.only_shown:
            show_plan(launch, as_json=False)
            raise click.exceptions.Exit(0)
        prepare_launch(launch)
        run_launch(launch, quiet=options["quiet"])
