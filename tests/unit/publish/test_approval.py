"""modules.approve: other: nothing gets into production by one person alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcstack.core import data
from hpcstack.core.errors import AnswerIsNo
from hpcstack.publish import make_release
from hpcstack.publish.make_release import (
    ReleaseRequest,
    find_candidate_of_recipe,
    find_candidate_of_release,
)
from hpcstack.publish.publisher import name_caller
from hpcstack.recipe.catalog import Catalog
from support.modules import Place

PRODUCTION = ReleaseRequest("production", override="why")


def test_somebody_else_promotes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path, modules={"approve": "other"})
    place.publish()
    with pytest.raises(AnswerIsNo, match="somebody else promotes it"):
        find_candidate_of_release("pytorch/24.11", PRODUCTION, place.publisher)

    monkeypatch.setattr(make_release, "name_caller", lambda: "a-colleague")
    found = find_candidate_of_release("pytorch/24.11", PRODUCTION, place.publisher)
    assert found.override == "why"


def test_nobody_publishes_into_production_alone(tmp_path: Path) -> None:
    place = Place(tmp_path, modules={"approve": "other"})
    place.artifact(place.stack())
    recipe = Catalog([data.find_data_folder("recipes")]).find("pytorch-24.11")
    with pytest.raises(AnswerIsNo, match="alone"):
        find_candidate_of_recipe(recipe, PRODUCTION, place.publisher)


def test_by_default_one_is_enough(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.publish()
    assert find_candidate_of_release("pytorch/24.11", PRODUCTION, place.publisher)


def test_a_variable_makes_nobody_another_person(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = name_caller()
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "a-colleague")
    assert name_caller() == mine
    monkeypatch.setenv("SUDO_UID", "not a number")
    assert name_caller() == mine
