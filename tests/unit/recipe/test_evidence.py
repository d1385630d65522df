"""What `list` says has been proven of a recipe, and when that no longer counts."""

from __future__ import annotations

import json

import pytest

from hpcstack.core import data
from hpcstack.recipe.catalog import Catalog
from hpcstack.recipe.evidence import FILE, describe_evidence, explain_lack, read_evidence
from hpcstack.recipe.model import Stack


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (None, "rendered only"),
        ({"stand_in": True, "tested": True}, "tested on a stand-in"),
        ({"stand_in": True, "tested": False}, "built on a stand-in"),
        ({"stand_in": False, "tested": True}, "tested"),
        ({"why_not": "its base is for arm64 alone"}, "rendered only"),
        ({"stand_in": True, "tested": True, "spec_sha256": "of another spec"}, "rendered only"),
    ],
)
def test_a_record_counts_for_its_spec(
    stack: Stack, record: dict[str, object] | None, said: str
) -> None:
    records = {stack.full_name: {"spec_sha256": stack.checksum(), **record}} if record else {}
    assert describe_evidence(stack, records) == said


def test_the_records_of_the_package_are_of_its_recipes_and_of_many_families() -> None:
    catalog = Catalog([data.find_data_folder("recipes")])
    recipes = {
        recipe.stack.full_name: recipe.stack
        for path in catalog.files()
        for recipe in catalog.read(path)
    }
    records = read_evidence()
    assert set(records) <= set(recipes), f"ci/evidence.py write drops what is gone from {FILE}"
    proven = {
        recipes[name].name
        for name in records
        if describe_evidence(recipes[name], records).startswith("tested")
    }
    assert len(proven) >= 8, proven
    assert json.loads((data.find_data_folder("recipes") / FILE).read_text()) == records


def test_why_a_recipe_was_not_built_counts_for_its_spec(stack: Stack) -> None:
    record = {"spec_sha256": stack.checksum(), "why_not": "its base is for arm64 alone"}
    assert explain_lack(stack, {stack.full_name: record}) == "its base is for arm64 alone"
    assert (
        explain_lack(stack, {stack.full_name: {**record, "spec_sha256": "of another spec"}}) == ""
    )
    assert explain_lack(stack, {}) == ""
