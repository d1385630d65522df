"""The model of own checks: what is refused, and what counts as another definition."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from hpcstack.recipe.model import Stack
from hpcstack.recipe.own_checks import OwnCheck, OwnFigure

TRIAD = {"pattern": r"Triad: +([0-9.]+)", "unit": "MB/s", "better": "higher"}


def stack(*checks: dict[str, Any], tests: tuple[str, ...] = ()) -> Stack:
    recipe: dict[str, Any] = {
        "apiVersion": "hpcstack/v1",
        "name": "demo",
        "version": "1",
        "summary": "a test",
        "base": {"image": "docker.io/library/debian:12"},
        "checks": list(checks),
        "tests": list(tests),
    }
    return Stack.model_validate(recipe)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"command": ""}, "give either `command` or `python`"),
        ({"python": "/opt/x.py"}, "give either `command` or `python`"),
        ({"arguments": ["-n"]}, "`arguments` go with `python`"),
        ({"expect": "("}, "not a regular expression"),
        ({"expect": ["x" * 501]}, "longer than 500"),
        ({"expect": ""}, "at least 1 character"),
        ({"on": "gpus"}, "'nodes', 'ranks' or 'mpi'"),
        ({"needs": ["GPU"]}, "'gpu' or 'fabric'"),
        ({"time_limit": 0}, "greater than or equal to 1"),
        ({"name": "Stream"}, "should match pattern"),
        ({"figures": {"triad": {**TRIAD, "pattern": "Triad"}}}, "has 0 groups"),
        ({"figures": {"triad": {**TRIAD, "pattern": "(a)(b)"}}}, "has 2 groups"),
        ({"figures": {"triad": {**TRIAD, "gate": "nan"}}}, "finite number"),
        ({"figures": {"triad": {**TRIAD, "better": "more"}}}, "'higher' or 'lower'"),
        ({"figures": {"Triad": TRIAD}}, "should match pattern"),
        ({"sanity_patterns": "x"}, "Extra inputs"),
        (
            {
                "figures": {
                    "rate": {**TRIAD, "unit": "per/s"},
                    "rate_per": {**TRIAD, "unit": "s"},
                }
            },
            "two figures are named 'rate_per_s'",
        ),
    ],
)
def test_what_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as refused:
        OwnCheck.model_validate({"name": "stream", "command": "true", **wrong})
    assert says in str(refused.value)


def test_a_figure_may_name_its_group_among_others() -> None:
    figure = OwnFigure(pattern=r"(step|epoch) took (?P<value>[0-9.]+)", better="lower")
    assert figure.gate_on("h100") is None


def test_a_gate_is_of_all_nodes_or_of_one_kind() -> None:
    one = OwnFigure.model_validate({**TRIAD, "gate": "180e3"})
    by_kind = OwnFigure.model_validate({**TRIAD, "gate": {"genoa": "600e3"}})
    assert one.gate_on("genoa") == one.gate_on("") == 180e3
    assert (by_kind.gate_on("genoa"), by_kind.gate_on("rome")) == (600e3, None)


def test_the_unit_ends_the_name_of_a_figure() -> None:
    check = OwnCheck.model_validate(
        {
            "name": "stream",
            "command": "stream",
            "figures": {"triad": TRIAD, "wrong": {"pattern": "(.)", "better": "lower"}},
        }
    )
    assert [check.name_figure(name) for name in check.figures] == ["triad_MB_s", "wrong"]


def test_two_checks_of_one_name_are_refused() -> None:
    same = {"name": "stream", "command": "stream"}
    with pytest.raises(ValidationError, match="two checks are named 'stream'"):
        stack(same, same)


def test_tests_may_name_own_checks_that_exist() -> None:
    check = {"name": "stream", "command": "stream"}
    assert stack(check, tests=("stack.stream", "stack", "site.any")).tests
    with pytest.raises(ValidationError, match=r"`tests` names stack.steam, and `checks` has"):
        stack(check, tests=("stack.steam",))


def test_a_check_changes_neither_lock_nor_image() -> None:
    check = {"name": "stream", "command": "stream"}
    assert stack().checksum() == stack(check).checksum()


def test_another_definition_has_another_digest() -> None:
    check = OwnCheck(name="stream", command="stream")
    assert check.digest() == OwnCheck(name="stream", command="stream", about="x").digest()
    assert check.digest() != OwnCheck(name="stream", command="stream", expect=("ok",)).digest()
    assert check.digest() != OwnCheck(name="stream", command="stream", time_limit=1).digest()
