"""The JSON Schema that editors use, judged by another validator."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import jsonschema
import pytest
import yaml

from hpcstack.core import data
from hpcstack.recipe.catalog import Catalog


def schema(*options: str) -> dict[str, Any]:
    argv = [sys.executable, "-m", "hpcstack", "schema", *options]
    found: dict[str, Any] = json.loads(
        subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    )
    return found


@pytest.mark.parametrize("options", [(), ("--site",)])
def test_it_is_a_schema(options: tuple[str, ...]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema(*options))


def test_every_recipe_file_of_the_package_fits_it() -> None:
    validator = jsonschema.Draft202012Validator(schema())
    for path in sorted(data.find_data_folder("recipes").glob("*.yaml")):
        found = yaml.load(path.read_text(), yaml.BaseLoader)
        errors = [
            f"{path.name}: {error.json_path}: {error.message}"
            for error in validator.iter_errors(found)
        ]
        assert errors == []


def test_every_effective_spec_fits_it() -> None:
    validator = jsonschema.Draft202012Validator(schema())
    catalog = Catalog([data.find_data_folder("recipes")])
    for path in catalog.files():
        for recipe in catalog.read(path):
            found = recipe.stack.model_dump(mode="json", by_alias=True, exclude_defaults=True)
            assert [error.message for error in validator.iter_errors(found)] == []


@pytest.mark.parametrize(
    "wrong",
    [{"pakages": {}}, {"environment": {"A": {"sett": "x"}}}, {"launch": {"mode": "mpirun"}}, {"packages": {"apt": "x"}},
     {"matrix": {"flavour": []}}],
)  # fmt: skip
def test_it_refuses_what_lint_refuses(wrong: dict[str, Any]) -> None:
    good = {
        "apiVersion": "hpcstack/v1",
        "name": "a",
        "version": "1",
        "summary": "s",
        "base": {"image": "x.y/z:1"},
    }
    validator = jsonschema.Draft202012Validator(schema())
    assert not list(validator.iter_errors(good))
    assert list(validator.iter_errors(good | wrong))
