"""The JSON Schema of a recipe's file.

It is the spec of a stack, and the keys that make one file of another, or several stacks of one.
"""

from __future__ import annotations

from typing import Any

from hpcstack.recipe.merge import AXES, OWN
from hpcstack.recipe.model import Stack

REPLACE = "drops what is inherited, and takes this list"


def make_file_schema() -> dict[str, Any]:
    """Return the schema for editors, which check a recipe while it is written.

    An editor sees one file as text, without what it extends: `hpcstack lint` has the last word.
    """
    schema = Stack.model_json_schema(by_alias=True)
    definitions = schema.setdefault("$defs", {})

    for model in (schema, *definitions.values()):
        model["properties"] = {
            name: _replaceable(value) for name, value in model.get("properties", {}).items()
        }

    own_names = set(OWN) - {"lifecycle"}  # a matrix value may have a lifecycle of its own
    fragment = {key: value for key, value in schema["properties"].items() if key not in own_names}
    definitions["Fragment"] = {
        "type": ["object", "null"],
        "additionalProperties": False,
        "properties": fragment,
        "description": "Parts of a recipe for this value only. They are merged over the file.",
    }

    axis = {
        "anyOf": [
            {"type": "array", "items": {"type": "string"}, "minItems": 1},
            {"type": "object", "additionalProperties": {"$ref": "#/$defs/Fragment"}},
        ]
    }
    rule = {"type": "object", "properties": {name: {"type": "string"} for name in AXES}}
    exclude = {"type": "array", "items": rule}

    schema["properties"] |= {
        "extends": {
            "type": "string",
            "description": "Full name of a stack, or name of a template (a file that begins with "
            "`_`), over which this recipe is merged: mappings key by key, lists appended, anything "
            "else replaced.",
        },
        "matrix": {
            "type": "object",
            "additionalProperties": False,
            "properties": {**dict.fromkeys(AXES, axis), "exclude": exclude},
            "description": "Makes several stacks of this file: one for each version and variant. "
            "Each is a list of values, or a mapping of values to what changes with each.",
        },
    }

    # What a file must say itself depends on what it extends and on its matrix.
    schema.pop("required", None)
    return schema


def _replaceable(value: dict[str, Any]) -> dict[str, Any]:
    """Return the schema VALUE; that of a list also takes {replace: list}."""
    if value.get("type") != "array":
        return _textual(value)
    replace = {
        "type": "object",
        "additionalProperties": False,
        "properties": {"replace": value},
        "required": ["replace"],
    }
    kept: dict[str, Any] = {key: value[key] for key in ("description", "default") if key in value}
    return {**kept, "anyOf": [value, {**replace, "description": REPLACE}]}


def _textual(value: dict[str, Any]) -> dict[str, Any]:
    """Return the schema VALUE; that of a truth value also takes text, as the reader gives it."""
    if value.get("type") != "boolean":
        return value
    return {**value, "type": ["boolean", "string"]}
