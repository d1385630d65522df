"""`hpcstack sign`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_images.py.
"""

from __future__ import annotations

import click

from hpcstack.cli.session import Session, answer, json_option, say


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
    from hpcstack.build.verify import sign_image_file

    file = session.find_image_file(image)
    signature = sign_image_file(file, key, session.site, session.store, session.runner, say)
    answer({"image": str(file.path), "signature": str(signature)}, as_json, lambda: str(signature))
