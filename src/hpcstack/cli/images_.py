"""`hpcstack images`."""

from __future__ import annotations

import click

from hpcstack.cli.session import Session, answer, json_option, table


@click.command("images")
@json_option
@click.pass_obj
def command(session: Session, as_json: bool) -> None:
    """The images in the store, the newest of each stack."""
    from hpcstack.store import as_dict

    artifacts = session.store.stacks()
    rows = [(name, f"{a.size / 1e6:.0f} MB", a.sha256[:12], str(a.image)) for name, a in artifacts.items()]
    answer([as_dict(a) for a in artifacts.values()], as_json, lambda: table(rows, ("STACK", "SIZE", "SHA256", "IMAGE")))
