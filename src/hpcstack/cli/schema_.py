"""`hpcstack schema`."""

from __future__ import annotations

import json

import click

from hpcstack.cli.session import echo


@click.command("schema")
@click.option(
    "--site", "of_site", is_flag=True, help="Print the schema of site.yaml instead of a recipe's."
)
@click.option(
    "--releases",
    "of_releases",
    is_flag=True,
    help="Print the schema of declared releases instead of a recipe's.",
)
def command(of_site: bool, of_releases: bool) -> None:
    """Print the JSON Schema of a recipe, of site.yaml or of declared releases, for editors."""
    from hpcstack.core.errors import InputError
    from hpcstack.schemas import make_schema

    if of_site and of_releases:
        raise InputError("--site and --releases exclude each other", "hpcstack schema --releases")
    if of_releases:
        schema = make_schema("releases")
    else:
        schema = make_schema("site" if of_site else "recipe")
    echo(json.dumps(schema, indent=1))
