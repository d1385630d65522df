"""`hpcstack site`.

Tested in tests/unit/cli/test_verbs.py and tests/unit/launch/test_squashfuse.py.
"""

from __future__ import annotations

from pathlib import Path

import click

from hpcstack.cli.session import Session, echo, give_script, say
from hpcstack.cli.site_health import health

OUTPUT = click.option(
    "-o",
    "--output",
    default="",
    metavar="FILE",
    help="Write it to this file.",
    show_default="stdout",
)


@click.group("site")
def command() -> None:
    """Write site.yaml for this cluster (site init), and the files that its nodes need.

    `hpcstack show --site` prints the effective site.yaml, with all layers.
    """


@command.command("init")
@OUTPUT
@click.option(
    "--name",
    default="",
    metavar="NAME",
    show_default="Slurm's ClusterName",
    help="Name of the cluster.",
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@click.pass_obj
def init(session: Session, output: str, name: str, force: bool) -> None:
    """Write a commented site.yaml, by asking this cluster what it has.

    Slurm, the GPU driver, /sys, Pyxis, Enroot, Apptainer and Lmod are asked.
    """
    import socket

    from hpcstack.core.errors import InputError
    from hpcstack.core.files import writing_below
    from hpcstack.core.outputs import write_output
    from hpcstack.site.discover import probe_site
    from hpcstack.site.write import render_site_text

    path = Path(output)
    if output and path.is_dir():
        raise InputError(f"{path} is a folder", f"name a file in it: {path}/hpcstack/site.yaml")
    if output and path.exists() and not force:
        raise InputError(f"{path} already exists", "name another file, or say --force")

    host = socket.gethostname().partition(".")[0]
    text = render_site_text(probe_site(session.runner), host, name)
    if not output:
        echo(text.rstrip("\n"))
        return

    with writing_below(path.parent, "site.yaml was not written"):
        write_output(path, text)
    say(f"{path}: read it, then use it with: export HPCSTACK_SITE={path.resolve()}")


@command.command("importer")
@OUTPUT
@click.option(
    "--check",
    default="full",
    type=click.Choice(["full", "none"]),
    show_default=True,
    help="full: read each image once per node, to check that it is what was published. none: trust "
    "the store.",
)
@click.pass_obj
def importer(session: Session, output: str, check: str) -> None:
    """Write an importer for Pyxis that knows published images.

    With it, srun --container-image=hpcstack/STACK runs the published image. In plugstack.conf:
    required .../spank_pyxis.so importer=FILE use_squashfuse=1. With use_squashfuse=1 (Pyxis 0.22)
    an image is mounted; without it, every step unpacks the image on every node. Any other image
    behaves as before, unless site.yaml has an image_cache: then it is imported once for all nodes
    and users (docs/how-to/set-up-the-image-cache.md).
    """
    from hpcstack.render.launchers import render_importer

    text = render_importer(session.site, check, _find_program(), _find_site_file(session))
    give_script(
        text,
        output,
        "name it in plugstack.conf on every node: required .../spank_pyxis.so use_squashfuse=1 "
        "importer=",
    )


@command.command("squashfuse")
@OUTPUT
def squashfuse(output: str) -> None:
    """Write a squashfuse for Enroot and Pyxis that reads with many threads.

    It runs squashfuse_ll in a way that Enroot and Pyxis can end. (A link to squashfuse_ll would
    hang when a step ends.) `hpcstack doctor -w NODE` says where it is worth it.
    """
    from hpcstack.render.template import read_data_file

    give_script(
        read_data_file("launchers", "to-copy/squashfuse"),
        output,
        "on every node, before /usr/bin in slurmd's PATH: ",
    )


@command.command("usage-hook")
@click.argument("system", metavar="lmod|tcl", type=click.Choice(["lmod", "tcl"]))
@OUTPUT
@click.pass_obj
def usage_hook(session: Session, system: str, output: str) -> None:
    """Write the hook that tells syslog who loads which release.

    It writes one line for each login or job that loads a release, tagged hpcstack-usage. Its first
    lines say what to write into Lmod's SitePackage.lua, or into siteconfig.tcl of Environment
    Modules. `hpcstack usage` reads the log.
    """
    from hpcstack.render.usage_hook import render_usage_hook

    text = render_usage_hook(session.site, system)
    give_script(text, output, "its first lines say where it is named: ", mode=0o644)


@command.command("image-service")
@OUTPUT
@click.pass_obj
def image_service(session: Session, output: str) -> None:
    """Write the systemd unit of a node's image service.

    The service imports each image once for all nodes and users (image_cache in site.yaml).
    """
    from hpcstack.core.errors import InputError
    from hpcstack.render.launchers import render_image_service

    if not session.site.image_cache.folder:
        raise InputError(
            "the site has no image cache",
            "image_cache: {folder: /shared/images} in site.yaml",
            page="set-up-the-image-cache",
        )

    text = render_image_service(session.site, _find_program(), _find_site_file(session))
    where = "on every node: systemctl enable --now hpcstack-images.service, which is "
    give_script(text, output, where, 0o644)


def _find_site_file(session: Session) -> str:
    """Return the site.yaml that describes the image cache; empty for none.

    It may be another than that of the person who types this.
    """
    origin = session.loaded.origins.get("image_cache.folder")
    return str(origin.file) if origin and origin.file else ""


def _find_program() -> str:
    """Return the path of this very hpcstack: nodes do not look for it on a user's PATH."""
    import sys

    program = Path(sys.argv[0])
    if program.name == "hpcstack":
        return str(program.absolute())
    return "hpcstack"


command.add_command(health)
