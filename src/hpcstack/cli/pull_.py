"""`hpcstack pull`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_pushing.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.session import Session, answer, events_option, json_option, show_progress
from hpcstack.cli.trusting import KEY, describe_evidence, read_trusted

if TYPE_CHECKING:
    from hpcstack.publish.pull_image import Evidence
    from hpcstack.store.artifact import Artifact


@click.command("pull")
@click.argument("image", metavar="REGISTRY/NAME:TAG")
@KEY
@events_option
@json_option
@click.pass_obj
def command(session: Session, image: str, key: str, events: str, as_json: bool) -> None:
    """Bring an image that `push` put into a registry into the store, with its evidence.

    It becomes the newest image of its stack, as if it had been built here: publish it, and test it
    on this cluster's nodes. The recipe that it was made of must be here.
    """
    from hpcstack.publish.pull_image import pull_image

    base, evidence, notes = read_trusted(session, image, key)
    with show_progress(f"pulling {image}", events) as progress:
        bench = session.workbench(progress)
        artifact = pull_image(base, evidence, session.recipe, bench)
    document = {**artifact.as_dict(), "evidence": describe_evidence(evidence, notes)}
    answer(document, as_json, lambda: _format_text(artifact, evidence, document["evidence"]))


def _format_text(artifact: Artifact, evidence: Evidence, about: dict[str, Any]) -> str:
    lines = [
        str(artifact.image),
        f"  {artifact.stack}, {artifact.size / 1e6:.0f} MB, sha256 {artifact.sha256}",
        *(
            f"  {name}: {value}"
            for name, value in about.items()
            if isinstance(value, str) and value
        ),
        *(f"  NOTE: {note}" for note in about["notes"]),
        "",
        f"  hpcstack publish {evidence.lock.stack}",
    ]
    return "\n".join(lines)
