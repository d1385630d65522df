"""The JSON Schemas that editors read."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from hpcstack.cli.schema_ import command


@pytest.mark.parametrize(("words", "key"), [((), "base"), (("--site",), "store")])
def test_the_schema_is_of_what_was_asked(words: tuple[str, ...], key: str) -> None:
    done = CliRunner().invoke(command, list(words))
    assert done.exit_code == 0
    schema = json.loads(done.stdout)
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert key in json.dumps(schema["properties"] if words else schema)


def test_what_a_site_may_force_is_known_to_an_editor() -> None:
    """`force` is taken out of /etc/hpcstack/site.yaml before the model sees the rest."""
    schema = json.loads(CliRunner().invoke(command, ["--site"]).stdout)
    assert "force" in schema["properties"]
    assert schema["additionalProperties"] is False
