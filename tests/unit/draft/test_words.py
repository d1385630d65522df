"""Words of instructions and values of variables, as BuildKit has them; what the base has is marked."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstack.draft.words import (
    LARGEST,
    NotUnderstood,
    expand_value,
    mark_base,
    quote_value,
    split_around_base,
    split_words,
)

KNOWN = {"A": "1", "EMPTY": "", "TWO": "a b"}


def look_up(name: str) -> str | None:
    return None if name == "NONE" else KNOWN.get(name, mark_base(name))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a  b\tc", ["a", "b", "c"]),
        ("A='x y' B=\"z 'w\" C=d\\ e", ["A='x y'", 'B="z \'w"', "C=d\\ e"]),
        ("'a\\' b'", ["'a\\'", "b'"]),
        ("", []),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert split_words(text, "\\") == words


# https://docs.docker.com/reference/dockerfile/#environment-replacement
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$A-$TWO", "1-a b"),
        ("'$A' \"$A\" \\$A", "$A 1 $A"),
        ("${A}b", "1b"),
        ("${EMPTY:-x}${EMPTY-y}", "x"),
        ("${A:+x}${EMPTY:+y}", "x"),
        ('"a\\b\\"c"', 'a\\b"c'),
        ("a$", "a$"),
        ("${NONE-x}${NONE:+y}$NONE", "x"),
        ("${EMPTY+y}", "y"),
        ("${A:-${TWO}}", "1"),
    ],
)
def test_values(text: str, value: str) -> None:
    assert expand_value(text, look_up, "\\") == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("${A#x}", "is not understood here"),
        ("${NOT_KNOWN:-x}", "depends on NOT_KNOWN of the base"),
        ("'a", "there is no '"),
        ('"a', 'there is no "'),
        ("${A", "is not understood"),
        ("${", "names no variable"),
        ("${A:-" * 3000, "nested too deeply"),
    ],
)
def test_what_is_not_understood_says_why(text: str, why: str) -> None:
    with pytest.raises(NotUnderstood, match=why):
        expand_value(text, look_up, "\\")


def test_a_value_does_not_grow_without_end() -> None:
    with pytest.raises(NotUnderstood, match="longer than"):
        expand_value("$B$B", lambda _: "x" * LARGEST, "\\")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("/a:$PATH", (":", ["/a"], [])),
        ("/a:/b:${PATH}:/c", (":", ["/a", "/b"], ["/c"])),
        ("/a${PATH:+:$PATH}", (":", ["/a"], [])),
        ("${PATH:+$PATH:}/a", (":", [], ["/a"])),
        ("$PATH -x", (" ", [], ["-x"])),
    ],
)
def test_what_the_base_has_stays_between_the_parts(
    text: str, parts: tuple[str, list[str], list[str]]
) -> None:
    assert split_around_base("PATH", expand_value(text, look_up, "\\")) == parts


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("$HOME/x", "holds HOME of the base"),
        ("a$PATH", "nothing separates"),
        ("$PATH$PATH", "PATH"),
    ],
)
def test_what_is_made_of_the_base_otherwise_is_not_guessed(text: str, why: str) -> None:
    with pytest.raises(NotUnderstood, match=why):
        split_around_base("PATH", expand_value(text, look_up, "\\"))


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=30))
def test_bash_reads_a_value_as_it_is(text: str) -> None:
    value = f"{text}{mark_base('X')}{text}{mark_base('NO', ':', '')}"
    script = f"export LC_ALL=C.UTF-8; X='a b'; printf %s {quote_value(value)}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    assert done.stdout.decode() == f"{text}a b{text}"
