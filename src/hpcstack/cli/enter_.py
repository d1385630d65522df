"""`hpcstack enter`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_entering.py.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from hpcstack.cli.session import Session, say


class Entering(click.Command):
    """A verb whose words after a `--` are the command, whether or not a job is named before it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        cut = args.index("--") if "--" in args else len(args)
        ctx.meta["command"] = tuple(args[cut + 1 :])
        return super().parse_args(ctx, args[:cut])


@click.command("enter", cls=Entering, options_metavar="[OPTIONS] [JOB] [-- COMMAND [ARGUMENTS]...]")
@click.argument("job", default="", metavar="")
@click.option("--rank", default="", metavar="NUMBER", help="Enter the container of this rank.")
@click.option("--node", default="", metavar="NODE", help="Enter a container on this node.")
@click.option("--debug", is_flag=True, help="Talk to the debugger of a rank (launch --debug).")
@click.option(
    "--ssh",
    is_flag=True,
    help="Speak SSH on standard input and output: for ProxyCommand in ~/.ssh/config.",
)
@click.option(
    "--ssh-config",
    is_flag=True,
    help="Print the lines for ~/.ssh/config that let ssh, scp, sftp and editors connect.",
)
@click.pass_context
def command(
    ctx: click.Context,
    job: str,
    rank: str,
    node: str,
    debug: bool,
    ssh: bool,
    ssh_config: bool,
) -> NoReturn:
    """Open a shell in the container of a running job, or run a command there.

    JOB is NUMBER or NUMBER.STEP, by default that of your newest launch. You enter the container of
    the first rank, unless --rank or --node names another. The shell ends with the job.
    """
    from hpcstack.core.errors import InputError
    from hpcstack.launch.debug import make_debug_client
    from hpcstack.launch.enter import (
        enter_rank,
        find_rank,
        make_ssh_keys,
        render_ssh_config,
        serve_ssh,
    )
    from hpcstack.launch.stacks import parse_job

    session: Session = ctx.obj
    argv: tuple[str, ...] = ctx.meta["command"]
    if (ssh or ssh_config) and argv:
        raise InputError("--ssh takes no command", "ssh hpcstack-JOB COMMAND")
    if debug and argv:
        raise InputError("--debug takes no command", "type it to the debugger")
    asked = parse_job(job)
    found = find_rank(asked, rank, node, session.runner)
    if ssh_config:
        keys = make_ssh_keys(asked.job, session.runner)
        words = [*session.command_on(""), "enter", "--ssh", job or asked.job]
        words += ["--rank", rank] if rank else []
        words += ["--node", node] if node else []
        click.echo(render_ssh_config(asked.job, keys, words))
        raise click.exceptions.Exit(0)
    if ssh:
        keys = make_ssh_keys(asked.job, session.runner)
        raise click.exceptions.Exit(serve_ssh(asked, found, keys, session.runner))

    if not found.by_namespace:
        say(
            "NOTE: the container was made by a set-uid program and cannot be entered; this is a "
            "second one, from the same image with the same options"
        )
    say(f"job {asked.job}, rank {found.number} on {found.node}")
    if debug:
        argv = make_debug_client(found.number)
    pty = sys.stdin.isatty() and sys.stdout.isatty()
    raise click.exceptions.Exit(enter_rank(asked, found, argv, session.runner, pty=pty))
