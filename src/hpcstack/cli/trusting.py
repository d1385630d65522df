"""What `pull` and `verify --from` share: which key counts, and what is said of an image.

Tested in tests/integration/test_pushing.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.session import Session, answer

if TYPE_CHECKING:
    from hpcstack.publish.pull_image import PushedImage

KEY = click.option(
    "--key",
    default="",
    metavar="FILE",
    show_default="registries.NAME.signature_key of site.yaml",
    help="Trust this public key.",
)
UNSIGNED = click.option("--unsigned", is_flag=True, help="Take it although nobody vouches for it.")


def describe_pushed(pushed: PushedImage) -> dict[str, Any]:
    """Return what is known of an image in a registry, for JSON."""
    attested = pushed.attested
    report = attested.report
    tested = ""
    if report:
        tested = f"{report.verdict()} on {', '.join(report.nodes[:4])}, {report.started[:10]}"
    return {
        "stack": attested.lock.stack,
        "digest": attested.digest,
        "platform": attested.platform,
        "lock": attested.lock.digest(),
        "squashfs": attested.squashfs,
        "tested": tested,
        "signed by": attested.signed_by,
        "notes": pushed.notes,
    }


def format_pushed(about: dict[str, Any]) -> list[str]:
    """Return ABOUT, as `describe_pushed` gives it, as lines."""
    lines = [
        f"  {name}: {value}" for name, value in about.items() if isinstance(value, str) and value
    ]
    return [*lines, *(f"  NOTE: {note}" for note in about["notes"])]


def check_pushed(
    session: Session,
    image: str,
    key: str,
    stack: str,
    *,
    unsigned: bool,
    platform: str,
    as_json: bool,
) -> None:
    """Check an image in a registry, and whether the store has the one that was pushed.

    With STACK, it must be an image of that stack. `read_pushed` raises AnswerIsNo where something
    is wrong.
    """
    from hpcstack.core.errors import AnswerIsNo
    from hpcstack.publish.pull_image import read_pushed

    pushed = read_pushed(image, key, session.registry, unsigned=unsigned, platform=platform)
    is_of = pushed.attested.lock.stack
    if stack and stack != is_of:
        raise AnswerIsNo(f"{image} is an image of {is_of}, not of {stack}", page="push-an-image")

    about = describe_pushed(pushed)
    here = session.store.newest(is_of)
    is_same = bool(here and here.sha256 == pushed.attested.squashfs)
    about["here"] = "the store has the very image that was pushed" if is_same else ""
    lines = [f"{image}: as it was pushed", *format_pushed(about)]
    answer({"image": image, "good": True, **about}, as_json, lambda: "\n".join(lines))
