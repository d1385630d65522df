"""The JSON Schemas are valid, and say of each key what it is for."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from hpcstack.schemas import make_schema


@pytest.mark.parametrize("kind", ["recipe", "site", "releases"])
def test_each_key_is_described(kind: Any) -> None:
    schema = make_schema(kind)
    assert schema["$schema"].endswith("/2020-12/schema")
    silent = [key for key, value in schema["properties"].items() if "description" not in value]
    assert kind != "releases" or silent == []


def test_the_schema_of_releases_takes_the_short_forms() -> None:
    short = {"a": "newest 3", "b": ["25.10"], "c": {"newest": 3, "prove": {"nodes": 2}}}
    jsonschema.validate({"releases": short}, make_schema("releases"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"releases": {"a": {"newst": 3}}}, make_schema("releases"))
