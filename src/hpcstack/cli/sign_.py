"""`hpcstack sign`."""

from __future__ import annotations

import click

from hpcstack.cli.session import Session, answer, image_named, json_option


@click.command("sign")
@click.argument("image", metavar="IMAGE")
@click.option(
    "--key", default="", metavar="FILE", help="A private SSH key (for a .sqsh), by default ~/.ssh/id_ed25519."
)
@json_option
@click.pass_obj
def command(session: Session, image: str, key: str, as_json: bool) -> None:
    """Sign an image: a .sqsh beside it by ssh-keygen, a SIF inside by Apptainer. `verify --signature` checks it."""
    from hpcstack import signing, verifying

    image = image_named(session, image)
    path = verifying.find(image, session.store)
    signature = signing.sign(path, key, session.runner, verifying.statement(image, session.store, session.runner))
    answer({"image": str(path), "signature": str(signature)}, as_json, lambda: str(signature))
