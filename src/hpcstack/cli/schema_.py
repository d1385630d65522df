"""`hpcstack schema`."""

from __future__ import annotations

import json

import click


@click.command("schema")
@click.option("--site", "of_site", is_flag=True, help="Of site.yaml instead of a recipe.")
def command(of_site: bool) -> None:
    """The JSON Schema of a recipe or of site.yaml, for editors."""
    from hpcstack.site import Site
    from hpcstack.spec.model import Stack

    schema = (Site if of_site else Stack).model_json_schema(by_alias=True)
    click.echo(json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=1))
