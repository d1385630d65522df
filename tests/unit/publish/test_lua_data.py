"""What may stand in a spider cache: data, and nothing that Lua would call."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcstack.core.errors import InputError
from hpcstack.core.quote import quote_lua
from hpcstack.publish.lua_data import check_lua_data

NAMES = frozenset({"spiderT", "mrcT"})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "spiderT = {}\nmrcT = { a = 1, [2] = true; 'x' }".replace("'", '"'),
        'spiderT = { ["a]b"] = { "x", -1.5e3, nil, }, b = [==[ ]] os.execute() ]==], }',
        'spiderT = { "a\\"b", "a\\\\" }',
    ],
)
def test_data_is_data(text: str) -> None:
    check_lua_data(text, NAMES)


@pytest.mark.parametrize(
    "text",
    [
        'os.execute("id")',
        'spiderT = { os.execute("id") }',
        'spiderT = { print "x" }',
        "spiderT = { print [[x]] }",
        "spiderT = { print {1} }",
        'spiderT = { ("x"):rep(9) }',
        'spiderT = "x" {1}',
        "spiderT = {} {1}",
        'spiderT = {} "x"',
        'spiderT = { a = b "x" }',
        'spiderT = { ["a"] "x" }',
        "os = {}",
        "spiderT = {} os = {}",
        "spiderT = { -- a comment",
        "spiderT = {",
        "spiderT = }{",
        "return {}",
        "spiderT = function() end",
        'spiderT = { "a\nb" }',
        "spiderT = { a.b }",
        'spiderT = {1--,[[\n,os.execute("id")\n--]]\n}',
        "\x1bLua",
    ],
)
def test_code_is_none(text: str) -> None:
    with pytest.raises(InputError, match="Lmod has printed"):
        check_lua_data(text, NAMES)


TABLES = st.recursive(
    st.one_of(st.text(max_size=8), st.integers(-9, 9), st.booleans()),
    lambda inner: st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)


def _render(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"[{quote_lua(k)}] = {_render(v)}" for k, v in value.items()) + "}"
    return quote_lua(value) if isinstance(value, str) else json.dumps(value)


@given(st.dictionaries(st.text(max_size=6), TABLES, max_size=3))
@settings(max_examples=60)
def test_any_table_is_data(table: dict[str, Any]) -> None:
    check_lua_data(f"spiderT = {_render(table)}\n", NAMES)


PIECES = [
    "spiderT", "print", "=", "{", "}", "[", "]", "(", ")", ",", ";", '"x"', "[[x]]", "1", "true",
    "function", "end", ".", ":", " ", "\n", "--", "return", "goto",
]  # fmt: skip


@pytest.mark.skipif(not shutil.which("luac5.3"), reason="no luac5.3 on this machine")
@given(st.lists(st.sampled_from(PIECES), max_size=12))
@settings(max_examples=150, deadline=None)
def test_what_is_data_compiles_to_no_call(tmp_path_factory: Any, pieces: list[str]) -> None:
    """Whatever we take, Lua's own compiler makes no CALL of it."""
    text = "".join(f"{piece} " for piece in pieces)
    try:
        check_lua_data(text, NAMES)
    except InputError:
        return
    file = Path(tmp_path_factory.getbasetemp(), "pieces.lua")
    file.write_text(text)
    done = subprocess.run(
        ["luac5.3", "-l", "-p", str(file)], capture_output=True, text=True, check=False
    )
    assert "CALL" not in done.stdout
    assert "CLOSURE" not in done.stdout
