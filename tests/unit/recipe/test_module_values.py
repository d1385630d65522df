"""What a module system would change is refused where a recipe says it."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from hpcstack.recipe.model import ModuleSpec
from hpcstack.recipe.module_values import normalize_part


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("~/x", "home directory"),
        ("/a:~/x", "home directory"),
        ({"prepend": "~/x"}, "home directory"),
        ({"append": "/a/"}, "Lmod writes '/a'"),
        ({"prepend": "/a//b"}, "Lmod writes '/a/b'"),
        ({"prepend": ["/a", "./b"]}, "Lmod writes 'b'"),
        ({"prepend": "http://h/p", "separator": " "}, "Lmod writes 'http:/h/p'"),
        ({"prepend": "/a:/b"}, "name two parts"),
    ],
)
def test_a_value_that_is_changed_is_refused(setting: object, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        ModuleSpec.model_validate({"environment": {"A": setting}})


@pytest.mark.parametrize(
    "setting",
    [
        "http://h/p", "/a/", "a~", "$HOME", " x ", "", {"prepend": "/a/../b"}, {"append": "a b"},
        {"prepend": "$HOME/bin"}, {"prepend": ["/a", "/b"]}, {"append": "a;b"}, {"prepend": "."},
    ],
)  # fmt: skip
def test_a_value_that_stays_is_taken(setting: object) -> None:
    assert ModuleSpec.model_validate({"environment": {"A": setting}}).environment


@pytest.mark.parametrize(
    ("part", "normal"),
    [("/a//", "/a//"), ("/", ""), (" ", ""), ("./././b", "b"), ("/a/./b/.", "/a/b"), (" x ", "x")],
)
def test_parts_are_written_as_lmod_writes_them(part: str, normal: str) -> None:
    assert normalize_part(part) == normal
