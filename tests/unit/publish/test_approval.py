"""modules.approve: other: nothing gets into production by one person alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcstack.core import data, people
from hpcstack.core.errors import AnswerIsNo, InputError
from hpcstack.core.people import name_caller
from hpcstack.publish import make_release
from hpcstack.publish.make_release import (
    ReleaseRequest,
    find_candidate_of_recipe,
    find_candidate_of_release,
)
from hpcstack.recipe.catalog import Catalog
from hpcstack.releases.changes import roll_back_version
from support.modules import Place

PRODUCTION = ReleaseRequest("production", override="why")


def test_somebody_else_promotes_the_very_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, modules={"approve": "other"})
    place.publish()
    with pytest.raises(InputError, match="say which release you approve"):
        find_candidate_of_release("pytorch/24.11", PRODUCTION, place.publisher)
    with pytest.raises(AnswerIsNo, match="somebody else promotes it"):
        find_candidate_of_release("pytorch/24.11-r1", PRODUCTION, place.publisher)

    monkeypatch.setattr(make_release, "name_caller", lambda: "a-colleague")
    found = find_candidate_of_release("pytorch/24.11-r1", PRODUCTION, place.publisher)
    assert found.override == "why"

    # in a namespace of one's own anybody is root, and so anybody
    monkeypatch.setattr(make_release, "is_machines_namespace", lambda: False)
    with pytest.raises(AnswerIsNo, match="who you are cannot be told"):
        find_candidate_of_release("pytorch/24.11-r1", PRODUCTION, place.publisher)


def test_no_other_verb_brings_what_nobody_has_approved(tmp_path: Path) -> None:
    place = Place(tmp_path, modules={"approve": "other"})
    place.publish(content=b"one", channel="production")
    place.publish(content=b"two", channel="production")
    place.publish(content=b"three")  # in testing

    def change(verb: str, to: str) -> None:
        place.publisher.change(
            "pytorch",
            verb,
            lambda ledger, event: roll_back_version(ledger, "24.11", to, event),
            "why",
            force=True,
        )

    with pytest.raises(InputError, match="would mean pytorch/24.11-r3, which is in testing"):
        change("rollback", "24.11-r3")
    change("rollback", "24.11-r1")
    assert place.tree.ledger("pytorch").aliases == {"24.11": "24.11-r1"}


@pytest.mark.parametrize(
    ("uid", "own_namespace", "login", "sudo", "expected"),
    [
        (0, False, "4294967295", "", "root"),
        (0, False, "4294967295", "1", "daemon"),  # by sudo
        (0, False, "1", "2", "daemon"),  # whatever came after the login
        (1, False, "4294967295", "2", "daemon"),  # a variable of one's own
        (0, True, "4294967295", "2", "daemon"),  # `unshare -r`: root of a namespace of one's own
        (0, True, "0", "2", "daemon"),
    ],
)
def test_who_runs_this_is_told_by_the_system(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    uid: int,
    own_namespace: bool,
    login: str,
    sudo: str,
    expected: str,
) -> None:
    (tmp_path / "loginuid").write_text(login)
    (tmp_path / "uid_map").write_text("         0          1          1\n")
    monkeypatch.setattr(people, "LOGIN_UID", tmp_path / "loginuid")
    monkeypatch.setattr(people, "UID_MAP", tmp_path / "uid_map")
    monkeypatch.setattr(people, "is_machines_namespace", lambda: not own_namespace)
    monkeypatch.setattr(os, "getuid", lambda: uid)
    monkeypatch.setenv("SUDO_UID", sudo)
    assert name_caller() == expected


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
