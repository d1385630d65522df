"""YAML as text with places: no guessed types, every problem at its line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstack.core.errors import ProblemsError
from hpcstack.core.yaml import format_path, parse_yaml


def test_scalars_stay_the_text_that_was_written() -> None:
    document = parse_yaml("version: 24.10\nno: no\ntime: 12:30:00\nempty:\n", "f.yaml")
    assert document.value == {"version": "24.10", "no": "no", "time": "12:30:00", "empty": None}


def test_places_are_kept() -> None:
    document = parse_yaml("a:\n  - x\n  - b: y\n", "f.yaml")
    assert document.mark(("a", 1, "b")) == ("f.yaml", 3, 8)
    assert format_path(("a", 1, "b")) == "a[1].b"


@pytest.mark.parametrize(
    ("text", "line", "column", "says"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, 1, "given twice"),
        ("a: &x 1\nb: *x\n", 1, 4, "aliases and anchors"),
        ("a: !!python/object:os.system x\n", 1, 4, "the tag"),
        ("a: [1\nb: 2\n", 2, 2, "not YAML"),
        ("? [x]\n: y\n", 1, 3, "a key must be text"),
        ("a: \x01\n", 1, 1, "not YAML"),
        ("a: 1\n---\nb: 2\n", 2, 1, "a second document"),
    ],
)
def test_what_is_refused_says_where(text: str, line: int, column: int, says: str) -> None:
    with pytest.raises(ProblemsError) as caught:
        parse_yaml(text, "f.yaml")
    problem = caught.value.problems[0]
    assert (problem.line, problem.column) == (line, column)
    assert says in problem.what


def test_an_alias_bomb_is_refused_before_it_grows() -> None:
    bomb = "a: &a [x,x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)},*{chr(97 + n)}]\n" for n in range(20)
    )
    with pytest.raises(ProblemsError, match="aliases"):
        parse_yaml(bomb, "f.yaml")


def test_depth_and_size_are_bounded() -> None:
    with pytest.raises(ProblemsError):
        parse_yaml("[" * 5000, "f.yaml")
    with pytest.raises(ProblemsError, match="larger"):
        parse_yaml("a: " + "x" * (1 << 21), "f.yaml")


@given(st.text(max_size=200))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        parse_yaml(text, "f.yaml")
    except ProblemsError as error:
        assert all(problem.line >= 1 for problem in error.problems)
