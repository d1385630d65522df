"""`hpcstack sign`."""

from __future__ import annotations

import click

from hpcstack.cli.session import Session, answer, image_named, json_option


@click.command("sign")
@click.argument("image", metavar="IMAGE")
@click.option(
    "--key",
    default="",
    metavar="FILE",
    help="A private SSH key (for a .sqsh), by default the site's signatures.sign_with, else "
    "~/.ssh/id_ed25519.",
)
@json_option
@click.pass_obj
def command(session: Session, image: str, key: str, as_json: bool) -> None:
    """Sign an image: a .sqsh beside it by ssh-keygen, a SIF inside by Apptainer. `verify
    --signature` checks it.
    """
    from hpcstack.build import verify
    from hpcstack.core.errors import AnswerIsNo
    from hpcstack.store import signing
    from hpcstack.store.find import find_file

    image = image_named(session, image)
    path = find_file(image, session.store)
    what, wanted = verify.make_statement(image, session.store), session.site.signatures
    key = key or wanted.sign_with
    good = (
        wanted.keys
        and path.suffix != ".sif"
        and signing.verify_by(path, wanted.keys, session.runner, what)[0]
    )
    if good and not signing.is_trusted(key, wanted.keys, session.runner):
        raise AnswerIsNo(
            f"{path} has a signature that this site trusts, and it does not trust this key",
            "signatures.keys in site.yaml names the keys that count",
        )
    signature = signing.sign_image(path, key, session.runner, what)
    answer({"image": str(path), "signature": str(signature)}, as_json, lambda: str(signature))
