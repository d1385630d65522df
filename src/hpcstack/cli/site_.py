"""`hpcstack site`."""

from __future__ import annotations

from pathlib import Path

import click

from hpcstack.cli.session import Session, say


@click.group("site")
def command() -> None:
    """This cluster's site.yaml. To see the effective one: hpcstack show --site"""


@command.command("init")
@click.option("-o", "--output", default="", metavar="FILE", help="Write it there; else it is printed.")
@click.option("--name", default="", help="The cluster's name; Slurm's ClusterName by default.")
@click.option("--force", is_flag=True, help="Replace a FILE that is there.")
@click.pass_obj
def init(session: Session, output: str, name: str, force: bool) -> None:
    """Ask Slurm, the driver, /sys, Pyxis, Enroot, Apptainer and Lmod what is here; write a commented site.yaml."""
    import socket

    from hpcstack.errors import InputError
    from hpcstack.probe import probe
    from hpcstack.siteinit import site_text
    from hpcstack.store import Store, write_text

    path = Path(output)
    if output and path.exists() and not force:
        raise InputError(f"{path} is there already", "name another file, or say --force")
    text = site_text(probe(session.runner), name or socket.gethostname().partition(".")[0])
    if not output:
        click.echo(text, nl=False)
        return
    with Store(path.parent).acting("site.yaml was not written"):
        write_text(path, text)
    say(f"{path}: read it, then use it with: export HPCSTACK_SITE={path.resolve()}")
