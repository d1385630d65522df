"""`hpcstack pull`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_pushing.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.session import Session, answer, events_option, json_option, show_progress
from hpcstack.cli.trusting import KEY, UNSIGNED, describe_pushed, format_pushed

if TYPE_CHECKING:
    from hpcstack.store.artifact import Artifact


@click.command("pull")
@click.argument("image", metavar="REGISTRY/NAME:TAG")
@KEY
@UNSIGNED
@events_option
@json_option
@click.pass_obj
def command(
    session: Session, image: str, key: str, unsigned: bool, events: str, as_json: bool
) -> None:
    """Bring an image that `push` put into a registry into the store, with its evidence.

    It becomes the newest image of its stack, as if it had been built here: publish it, and test it
    on this cluster's nodes. The recipe that it was made of must be here.
    """
    from hpcstack.publish.pull_image import pull_image, read_pushed

    pushed = read_pushed(image, key, session.registry, unsigned=unsigned)
    with show_progress(f"pulling {image}", events) as progress:
        artifact = pull_image(pushed, session.recipe, session.workbench(progress))
    about = describe_pushed(pushed)
    answer({**artifact.as_dict(), "pushed": about}, as_json, lambda: _format_text(artifact, about))


def _format_text(artifact: Artifact, about: dict[str, Any]) -> str:
    lines = [
        str(artifact.image),
        f"  {artifact.size / 1e6:.0f} MB, sha256 {artifact.sha256}",
        *format_pushed(about),
        "",
        f"  hpcstack publish {artifact.stack} --image {artifact.key[:12]}",
    ]
    return "\n".join(lines)
