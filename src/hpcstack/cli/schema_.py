"""`hpcstack schema`."""

from __future__ import annotations

import json

import click

from hpcstack.cli.session import echo


@click.command("schema")
@click.option(
    "--site", "of_site", is_flag=True, help="Print the schema of site.yaml instead of a recipe's."
)
def command(of_site: bool) -> None:
    """Print the JSON Schema of a recipe or of site.yaml, for editors."""
    if of_site:
        from hpcstack.site.load import SYSTEM, Site

        schema = Site.model_json_schema(by_alias=True)
        # site/load.py takes this key out before the model sees the rest.
        schema["properties"]["force"] = {
            "type": "object",
            "description": f"In {SYSTEM} alone: keys that no later file overrides.",
            "examples": [{"runtime": "pyxis"}],
        }
    else:
        from hpcstack.recipe.schema import make_file_schema

        schema = make_file_schema()

    dialect = "https://json-schema.org/draft/2020-12/schema"
    echo(json.dumps({"$schema": dialect, **schema}, indent=1))
