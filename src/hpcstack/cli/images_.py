"""`hpcstack images`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_images.py.
"""

from __future__ import annotations

import click

from hpcstack.cli.session import Session, answer, format_table, json_option


@click.command("images")
@click.option("--all", "every", is_flag=True, help="List every image, not only the newest ones.")
@json_option
@click.pass_obj
def command(session: Session, every: bool, as_json: bool) -> None:
    """List the images in the store.

    Without --all, only the newest image of each stack and platform is listed.
    """
    found = session.store.images() if every else session.store.newest_images()
    rows = [
        (
            one.stack,
            one.platform,
            one.engine,
            one.key[:12],
            f"{one.size / 1e6:.0f} MB",
            one.sha256[:12],
            str(one.image),
        )
        for one in found
    ]
    head = ("STACK", "PLATFORM", "ENGINE", "KEY", "SIZE", "SHA256", "IMAGE")
    answer([one.as_dict() for one in found], as_json, lambda: format_table(rows, head))
