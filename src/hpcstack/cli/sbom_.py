"""`hpcstack sbom`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_images.py.
"""

from __future__ import annotations

from pathlib import Path

import click

from hpcstack.cli.session import Session, echo, say


@click.command("sbom")
@click.argument("image", metavar="IMAGE")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    show_default="stdout",
    help="Write it to this file.",
)
@click.pass_obj
def command(session: Session, image: str, output: Path | None) -> None:
    """Print an image's software bill of materials, as CycloneDX JSON.

    IMAGE is a stack, a release, STACK@ENGINE, STACK@built (the image built last), or the beginning
    of a key.
    """
    from hpcstack.core.outputs import write_output
    from hpcstack.store import sbom

    found = session.find_image(image)
    text = sbom.make_image_sbom(found)
    if output is None:
        echo(text.rstrip("\n"))
        return

    with session.store.acting("the SBOM was not written"):
        write_output(output, text)
    say(f"{output}: {len(found.apt)} apt and {len(found.pip)} pip packages")
