"""JSON Schemas of the files that people write, for their editors."""

from __future__ import annotations

from typing import Any, Literal

from hpcstack.recipe.schema import make_file_schema
from hpcstack.site.load import SYSTEM, Site
from hpcstack.sync.declaration import Declaration

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def make_schema(kind: Literal["recipe", "site", "releases"]) -> dict[str, Any]:
    """Return the JSON Schema of a recipe, of site.yaml, or of a file of declared releases."""
    if kind == "recipe":
        schema = make_file_schema()
    elif kind == "releases":
        schema = Declaration.model_json_schema(by_alias=True)
    else:
        schema = Site.model_json_schema(by_alias=True)
        # site/load.py takes this key out before the model sees the rest.
        schema["properties"]["force"] = {
            "type": "object",
            "description": f"In {SYSTEM} alone: keys that no later file overrides.",
            "examples": [{"runtime": "pyxis"}],
        }
    return {"$schema": DIALECT, **schema}
