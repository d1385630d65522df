"""Quoting, judged by a real shell, a real Lua and Apptainer's own template rule."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcstack.render.quote import dockerfile, lua, sh

# What a spec may hold: any text without control characters; surrogates are no text.
LINES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=60)
LUA = shutil.which("lua5.3") or shutil.which("lua5.4") or shutil.which("lua") or "lua"


@settings(max_examples=60, deadline=None)
@given(st.lists(LINES, min_size=1, max_size=8))
def test_a_shell_gives_back_what_was_quoted(texts: list[str]) -> None:
    line = " ".join(sh(text) for text in texts)
    said = subprocess.run(["sh", "-c", f"printf '%s\\n' {line}"], capture_output=True, check=True).stdout
    assert said.decode() == "".join(f"{text}\n" for text in texts)


@given(st.text("{}a' ", max_size=12))
def test_a_definition_never_holds_a_build_argument(text: str) -> None:
    assert "{{" not in sh(text) and "}}" not in sh(text)
    assert shlex.split(sh(text)) == [text]


@pytest.mark.lua
@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), min_size=1, max_size=8))
def test_lua_gives_back_what_was_quoted(texts: list[str]) -> None:
    program = "\n".join(f"io.write({lua(text)}, '\\0')" for text in texts)
    said = subprocess.run([LUA, "-"], input=program.encode(), capture_output=True, check=True).stdout
    assert said.decode().split("\0")[:-1] == [part for text in texts for part in text.split("\0")]


@given(LINES)
def test_lua_strings_are_one_line_of_ascii(text: str) -> None:
    assert re.fullmatch(r'"[ -~]*"', lua(text))


@pytest.mark.parametrize(
    ("text", "quoted"),
    [('a"b', '"a\\"b"'), ("$HOME", '"\\$HOME"'), ("a\\b", '"a\\\\b"'), ("{{x}}", '"{{x}}"')],
)
def test_dockerfile_values_expand_nothing(text: str, quoted: str) -> None:
    assert dockerfile(text) == quoted
