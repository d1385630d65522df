"""`hpcstack schema`."""

from __future__ import annotations

import json

import click

from hpcstack.cli.session import echo


@click.command("schema")
@click.option("--site", "of_site", is_flag=True, help="Of site.yaml instead of a recipe.")
def command(of_site: bool) -> None:
    """The JSON Schema of a recipe's file or of site.yaml, for editors."""
    if of_site:
        from hpcstack.site.load import Site

        schema = Site.model_json_schema(by_alias=True)
    else:
        from hpcstack.recipe.schema import file_schema

        schema = file_schema()
    echo(
        json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=1)
    )
