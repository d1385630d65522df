"""`hpcstack enter`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_entering.py.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from hpcstack.cli.session import Session, say


@click.command("enter", context_settings={"ignore_unknown_options": False})
@click.argument("job", default="", metavar="[JOB]")
@click.option("--rank", default="", metavar="NUMBER", help="Enter the container of this rank.")
@click.option("--node", default="", metavar="NODE", help="Enter a container on this node.")
@click.option(
    "--ssh",
    is_flag=True,
    help="Speak SSH on standard input and output: for ProxyCommand in ~/.ssh/config.",
)
@click.option(
    "--ssh-config",
    is_flag=True,
    help="Print the lines for ~/.ssh/config by which ssh, scp, sftp and editors get there.",
)
@click.argument("argv", metavar="[-- COMMAND [ARGUMENTS]...]", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def command(
    session: Session,
    job: str,
    rank: str,
    node: str,
    ssh: bool,
    ssh_config: bool,
    argv: tuple[str, ...],
) -> NoReturn:
    """Open a shell in the container of a running job, or run a command there.

    JOB is its number, or NUMBER.STEP; the newest launch's by default. The shell is in the very
    container of a rank: the first one, unless --rank or --node says otherwise. It ends with the
    job.
    """
    from hpcstack.core.errors import InputError
    from hpcstack.launch.enter import (
        enter_rank,
        find_rank,
        make_ssh_keys,
        render_ssh_config,
        serve_ssh,
    )
    from hpcstack.launch.stacks import parse_job

    if (ssh or ssh_config) and argv:
        raise InputError("--ssh takes no command", "ssh hpcstack-JOB COMMAND")
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
    pty = sys.stdin.isatty() and sys.stdout.isatty()
    raise click.exceptions.Exit(enter_rank(asked, found, argv, session.runner, pty=pty))
