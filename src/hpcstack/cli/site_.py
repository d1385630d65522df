"""`hpcstack site`."""

from __future__ import annotations

from pathlib import Path

import click

from hpcstack.cli.session import Session, echo, give_script, say
from hpcstack.cli.site_health import health


@click.group("site")
def command() -> None:
    """This cluster's site.yaml. To see the effective one: hpcstack show --site"""


@command.command("init")
@click.option(
    "-o", "--output", default="", metavar="FILE", help="Write it there instead of printing it."
)
@click.option("--name", default="", help="The cluster's name; Slurm's ClusterName by default.")
@click.option("--force", is_flag=True, help="Replace an existing FILE.")
@click.pass_obj
def init(session: Session, output: str, name: str, force: bool) -> None:
    """Ask Slurm, the driver, /sys, Pyxis, Enroot, Apptainer and Lmod what is here; write a
    commented site.yaml.
    """
    import socket

    from hpcstack.core.errors import InputError
    from hpcstack.core.files import writing_below
    from hpcstack.core.outputs import write_output
    from hpcstack.site.discover import probe_site
    from hpcstack.site.write import site_text

    path = Path(output)
    if output and path.is_dir():
        raise InputError(f"{path} is a folder", f"name a file in it: {path}/hpcstack/site.yaml")
    if output and path.exists() and not force:
        raise InputError(f"{path} already exists", "name another file, or say --force")
    text = site_text(probe_site(session.runner), socket.gethostname().partition(".")[0], name)
    if not output:
        echo(text.rstrip("\n"))
        return
    with writing_below(path.parent, "site.yaml was not written"):
        write_output(path, text)
    say(f"{path}: read it, then use it with: export HPCSTACK_SITE={path.resolve()}")


@command.command("importer")
@click.option(
    "-o", "--output", default="", metavar="FILE", help="Write it there instead of printing it."
)
@click.option(
    "--check",
    default="full",
    type=click.Choice(["full", "none"]),
    show_default=True,
    help="Read each image once per node to see that it is what was published, or trust the store.",
)
@click.pass_obj
def importer(session: Session, output: str, check: str) -> None:
    """Write Pyxis's importer, with which srun --container-image=hpcstack/STACK is the published
    image.

    In plugstack.conf: required .../spank_pyxis.so importer=FILE use_squashfuse=1. Any other image
    behaves as before. With use_squashfuse=1 (Pyxis 0.22) an image is mounted; without it every step
    unpacks it on every node. Where site.yaml has an image_cache, any other image is imported once
    for all nodes and users (docs/how-to/set-up-the-image-cache.md).
    """
    from hpcstack.render.launchers import render_importer as script

    text = script(session.site, check, _program(), _site_file(session))
    give_script(
        text,
        output,
        (
            "name it in plugstack.conf on every node: required .../spank_pyxis.so use_squashfuse=1 "
            "importer="
        ),
    )


@command.command("squashfuse")
@click.option(
    "-o", "--output", default="", metavar="FILE", help="Write it there instead of printing it."
)
def squashfuse(output: str) -> None:
    """Write a squashfuse for Enroot and Pyxis that reads with many threads: squashfuse_ll, as they
    can end it.

    Worth it where `hpcstack doctor -w NODE` says so. A link to squashfuse_ll would not do: it hangs
    when a step ends.
    """
    from hpcstack.render.template import read_data_file

    give_script(
        read_data_file("launchers", "to-copy/squashfuse"),
        output,
        "on every node, before /usr/bin in slurmd's PATH: ",
    )


@command.command("image-service")
@click.option(
    "-o", "--output", default="", metavar="FILE", help="Write it there instead of printing it."
)
@click.pass_obj
def image_service(session: Session, output: str) -> None:
    """Write the systemd unit of the service that imports images once for all (image_cache in
    site.yaml).
    """
    from hpcstack.core.errors import InputError
    from hpcstack.render.launchers import render_image_service as unit

    if not session.site.image_cache.folder:
        raise InputError(
            "the site has no image cache", "image_cache: {folder: /shared/images} in site.yaml"
        )
    text = unit(session.site, _program(), _site_file(session))
    give_script(
        text,
        output,
        "on every node: systemctl enable --now hpcstack-images.service, which is ",
        0o644,
    )


def _site_file(session: Session) -> str:
    """The site.yaml that has the image cache, not one of who types this; empty for none."""
    origin = session.loaded.origins.get("image_cache.folder")
    return str(origin.file) if origin and origin.file else ""


def _program() -> str:
    """This very hpcstack, by its path: users' own PATHs do not count on a node."""
    import sys

    return str(Path(sys.argv[0]).absolute()) if Path(sys.argv[0]).name == "hpcstack" else "hpcstack"


command.add_command(health)
