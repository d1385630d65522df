"""`hpcstack import`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_ngc_registry.py.
"""

from __future__ import annotations

from pathlib import Path

import click

from hpcstack.cli.session import Session, answer, events_option, json_option, show_progress


@click.command("import")
@click.argument("image", metavar="IMAGE")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    show_default="as Enroot names it, in this folder",
    help="Write this file.",
)
@click.option(
    "--platform",
    default="",
    metavar="PLATFORM",
    show_default="this machine's",
    help="linux/amd64 or linux/arm64.",
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@events_option
@json_option
@click.pass_obj
def command(
    session: Session,
    image: str,
    output: Path | None,
    platform: str,
    force: bool,
    events: str,
    as_json: bool,
) -> None:
    """Import any image as one squashfs file that Pyxis, Enroot and Apptainer can run.

    IMAGE is an image in a registry, such as nvcr.io/nvidia/pytorch:24.11-py3, or oci:FOLDER,
    oci-archive:FILE, docker-archive:FILE or docker-daemon:NAME; or a SIF.
    """
    from hpcstack.adopt.import_sif import import_any

    with show_progress(f"importing {image}", events) as progress:
        done = import_any(image, platform, output, session.workbench(progress), force=force)
    document = {
        "path": str(done.path),
        "size": done.size,
        "digest": done.image.digest,
        "platform": done.image.platform,
        "layers": len(done.image.layers),
        "seconds": round(done.seconds, 2),
    }

    def text() -> str:
        return (
            f"{done.path}\n  {done.size / 1e6:.0f} MB, from {done.image.digest}, "
            f"{done.seconds:.1f} s"
        )

    answer(document, as_json, text)
