"""Quoting, judged by a real shell, a real Lua and Apptainer's own template rule."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpcstack.core.quote import (
    lua_lines,
    quote_dockerfile,
    quote_exec_form,
    quote_lua,
    quote_sh,
    quote_tcl,
)
from hpcstack.render.template import fill_template

# What a spec may hold: any text without control characters; surrogates are no text.
LINES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=60)
LUA = shutil.which("lua5.3") or shutil.which("lua5.4") or shutil.which("lua") or "lua"


@settings(max_examples=60, deadline=None)
@given(st.lists(LINES, min_size=1, max_size=8))
def test_a_shell_gives_back_what_was_quoted(texts: list[str]) -> None:
    line = " ".join(quote_sh(text) for text in texts)
    said = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {line}"], capture_output=True, check=True
    ).stdout
    assert said.decode() == "".join(f"{text}\n" for text in texts)


@given(st.text("{}a' ", max_size=12))
def test_a_definition_never_holds_a_build_argument(text: str) -> None:
    assert "{{" not in quote_sh(text)
    assert "}}" not in quote_sh(text)
    assert shlex.split(quote_sh(text)) == [text]


@pytest.mark.lua
@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), min_size=1, max_size=8)
)
def test_lua_gives_back_what_was_quoted(texts: list[str]) -> None:
    program = "\n".join(f"io.write({quote_lua(text)}, '\\0')" for text in texts)
    said = subprocess.run(
        [LUA, "-"], input=program.encode(), capture_output=True, check=True
    ).stdout
    assert said.decode().split("\0")[:-1] == [part for text in texts for part in text.split("\0")]


@pytest.mark.lua
@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.text(st.sampled_from("]=[\n\r\\\"'ab\x1b\u2028\u0301-"), max_size=30) | LINES,
        min_size=1,
        max_size=8,
    )
)
@example(["a]", "\n]", "\n]]", "\n]=]]", "]=\n]=", "\n\n"])
def test_lua_gives_back_lines(texts: list[str]) -> None:
    program = "\n".join(f"io.write({lua_lines(text)}, '\\0')" for text in texts)
    said = subprocess.run(
        [LUA, "-"], input=program.encode(), capture_output=True, check=True
    ).stdout
    assert said.decode().split("\0")[:-1] == texts


@given(LINES)
def test_lua_strings_are_one_line_of_ascii(text: str) -> None:
    assert re.fullmatch(r'"[ -~]*"', quote_lua(text))


@pytest.mark.parametrize(
    ("text", "quoted"),
    [('a"b', '"a\\"b"'), ("$HOME", '"\\$HOME"'), ("a\\b", '"a\\\\b"'), ("{{x}}", '"{{x}}"')],
)
def test_dockerfile_values_expand_nothing(text: str, quoted: str) -> None:
    assert quote_dockerfile(text) == quoted


@pytest.mark.tcl
@settings(max_examples=40, deadline=None)
@given(st.lists(LINES, min_size=1, max_size=8))
def test_tcl_gives_back_what_was_quoted(texts: list[str]) -> None:
    program = "fconfigure stdout -encoding utf-8\n" + "\n".join(
        f"puts {quote_tcl(text)}" for text in texts
    )
    said = subprocess.run(
        ["tclsh"],
        input=f"encoding system utf-8\n{program}\n".encode(),
        capture_output=True,
        check=True,
    ).stdout
    plain = [text for text in texts if all(ord(char) < 0x10000 for char in text)]
    if plain == texts:  # Tcl 8.6 keeps what lies beyond the basic plane in its own way
        assert said.decode() == "".join(f"{text}\n" for text in texts)
    assert said.count(b"\n") == len(texts)


@settings(max_examples=100, deadline=None)
@given(st.lists(LINES, min_size=1, max_size=5))
def test_dockers_own_parser_gives_back_what_was_quoted(texts: list[str]) -> None:
    import dockerfile as docker

    lines = [
        "FROM scratch",
        *(f"ENV N{n}={quote_dockerfile(text)}" for n, text in enumerate(texts)),
    ]
    lines += [f"LABEL l{n}={quote_dockerfile(text)}" for n, text in enumerate(texts)]
    lines += [f"ENTRYPOINT {quote_exec_form(texts)}"]
    read = docker.parse_string("\n".join(lines))
    assert len(read) == 2 + 2 * len(texts)
    assert read[-1].value == tuple(texts)
    for n, text in enumerate(texts):  # the parser keeps the quotes; what is between them is ours
        assert read[1 + n].value[:2] == (f"N{n}", quote_dockerfile(text))
        assert read[1 + len(texts) + n].value[:2] == (f"l{n}", quote_dockerfile(text))


@settings(max_examples=100, deadline=None)
@given(st.lists(LINES, min_size=1, max_size=5), st.text("{}", max_size=6))
def test_any_values_survive_in_a_definition_file(texts: list[str], braces: str) -> None:
    """spython reads it; a real shell runs its %environment section."""
    from spython.main.parse.parsers import get_parser

    values = {f"N{n}": text + braces for n, text in enumerate(texts)}
    text = fill_template("images", "apptainer.def.j2", **definition(values))
    assert "{{" not in text
    assert "}}" not in text
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "apptainer.def"
        path.write_text(text, encoding="utf-8")
        recipe = next(iter(get_parser("singularity")(str(path)).recipe.values()))
    assert recipe.fromHeader == "example.org/a@sha256:0"
    section = (
        text.partition("%environment\n")[2]
        .partition("%labels")[0]
        .replace(". /opt/hpcstack/compat.sh", "")
    )
    said = subprocess.run(
        ["sh", "-c", section + "\nenv -0"], capture_output=True, check=True
    ).stdout
    found = dict(
        entry.partition("=")[::2]
        for entry in said.decode(errors="surrogateescape").split("\0")
        if entry
    )
    assert {name: found[name] for name in values} == values


def definition(values: dict[str, str]) -> dict[str, object]:
    stack = {"full_name": "demo-1", "labels": {}}
    return {
        "stack": stack, "tagged": "example.org/a:1", "pinned": "example.org/a@sha256:0", "context": "c", "home": "/opt/hpcstack",
        "steps": [], "environment": values, "entrypoint": (), "docker_entrypoint": (),
    }  # fmt: skip
