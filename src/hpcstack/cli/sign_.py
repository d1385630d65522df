"""`hpcstack sign`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_images.py.
"""

from __future__ import annotations

import click

from hpcstack.cli.session import Session, answer, find_image_named, json_option


@click.command("sign")
@click.argument("image", metavar="IMAGE")
@click.option(
    "--key",
    default="",
    metavar="FILE",
    show_default="signatures.sign_with of site.yaml, else ~/.ssh/id_ed25519",
    help="Sign a .sqsh file with this private SSH key.",
)
@json_option
@click.pass_obj
def command(session: Session, image: str, key: str, as_json: bool) -> None:
    """Sign an image; `hpcstack verify --signature` checks the signature.

    The signature of a .sqsh file is made by ssh-keygen and lies beside it. A SIF is signed inside,
    by Apptainer.
    """
    from hpcstack.build import verify
    from hpcstack.core.errors import AnswerIsNo
    from hpcstack.store import signing
    from hpcstack.store.find import find_file

    image = find_image_named(session, image)
    path = find_file(image, session.store)
    statement = verify.make_statement(image, session.store)
    settings = session.site.signatures
    key = key or settings.sign_with

    # A new signature takes the place of the old one: do not lose one that this site trusts.
    has_trusted_signature = (
        settings.keys
        and path.suffix != ".sif"
        and signing.verify_by(path, settings.keys, session.runner, statement)[0]
    )
    if has_trusted_signature and not signing.is_trusted(key, settings.keys, session.runner):
        raise AnswerIsNo(
            f"{path} has a signature that this site trusts, and it does not trust this key",
            "signatures.keys in site.yaml names the keys that count",
            page="sign-images",
        )

    signature = signing.sign_image(path, key, session.runner, statement)
    answer({"image": str(path), "signature": str(signature)}, as_json, lambda: str(signature))
