"""The JSON Schema of a recipe's file: the spec, and what makes one file of another or several of
one.
"""

from __future__ import annotations

from typing import Any

from hpcstack.recipe.merge import AXES, OWN
from hpcstack.recipe.model import Stack

REPLACE = "drops what is inherited"


def file_schema() -> dict[str, Any]:
    """What an editor checks while a recipe is being written: text, line by line; `lint` has the
    last word.
    """
    schema = Stack.model_json_schema(by_alias=True)
    definitions = schema.setdefault("$defs", {})
    for model in (schema, *definitions.values()):
        model["properties"] = {
            name: _replaceable(value) for name, value in model.get("properties", {}).items()
        }
    fragment = {
        key: value
        for key, value in schema["properties"].items()
        if key not in OWN or key == "lifecycle"
    }
    definitions["Fragment"] = {
        "type": ["object", "null"],
        "additionalProperties": False,
        "properties": fragment,
        "description": "what this value changes, merged over the file",
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
            "description": "the full name of a stack, or a template (_name)",
        },
        "matrix": {
            "type": "object",
            "additionalProperties": False,
            "properties": {**dict.fromkeys(AXES, axis), "exclude": exclude},
            "description": "one stack for each version and variant",
        },
    }
    # What a file must say itself depends on what it extends and on its matrix.
    schema.pop("required", None)
    return schema


def _replaceable(value: dict[str, Any]) -> dict[str, Any]:
    """A list, or {replace: a list}; anything else as it is."""
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
    """A truth value may be written as YAML reads it, or as text."""
    return {**value, "type": ["boolean", "string"]} if value.get("type") == "boolean" else value
