"""`hpcstack images`."""

from __future__ import annotations

import click

from hpcstack.cli.session import Session, answer, format_table, json_option


@click.command("images")
@click.option("--all", "every", is_flag=True, help="Every image, not only the newest ones.")
@json_option
@click.pass_obj
def command(session: Session, every: bool, as_json: bool) -> None:
    """The images in the store, the newest of each stack and platform."""

    found = session.store.images() if every else session.store.newest_images()
    rows = [
        (
            a.stack,
            a.platform,
            a.engine,
            a.key[:12],
            f"{a.size / 1e6:.0f} MB",
            a.sha256[:12],
            str(a.image),
        )
        for a in found
    ]
    head = ("STACK", "PLATFORM", "ENGINE", "KEY", "SIZE", "SHA256", "IMAGE")
    answer([one.as_dict() for one in found], as_json, lambda: format_table(rows, head))
