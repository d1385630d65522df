"""`hpcstack inspect`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_images.py.
"""

from __future__ import annotations

import click

from hpcstack.cli.session import Session, answer, json_option


@click.command("inspect")
@click.argument("image", metavar="IMAGE")
@json_option
@click.pass_obj
def command(session: Session, image: str, as_json: bool) -> None:
    """Show what an image is: its stack, base, packages and releases.

    IMAGE is a stack, a release, STACK@ENGINE, STACK@built (the image built last), the beginning of
    a key, or a file.
    """
    from hpcstack.build import verify

    about = verify.describe_image_file(session.find_image_file(image), session.store)

    def text() -> str:
        lines = []
        for name, value in about.items():
            if isinstance(value, dict):
                lines += [f"{name}:", *(f"  {key}  {one}" for key, one in value.items())]
            elif isinstance(value, list):
                lines.append(f"{name}: {', '.join(map(str, value))}")
            else:
                lines.append(f"{name}: {value}")
        return "\n".join(lines)

    answer(about, as_json, text)
