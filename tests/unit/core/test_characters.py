"""Which characters text of others may hold, and a name."""

from __future__ import annotations

import pytest

from hpcstack.core.characters import CONTROL, ENDS_LINE, VARIABLE

LINE_ENDS = "\n\r\x0b\x0c\x85\u2028\u2029"


@pytest.mark.parametrize("character", [*LINE_ENDS, "\x00", "\x1b", "\x7f"])
def test_what_controls_a_terminal_or_ends_a_line_is_found(character: str) -> None:
    assert CONTROL.search(f"before{character}after")


@pytest.mark.parametrize("text", ["", "a tab\tand blanks", "Ünïcode, 漢字", "quotes ' \" $ `"])
def test_other_text_is_let_through(text: str) -> None:
    assert not CONTROL.search(text)
    assert not ENDS_LINE.search(text)


@pytest.mark.parametrize("character", [*LINE_ENDS, "\x00", "\x1b"])
def test_every_end_of_a_line_of_any_reader_is_one(character: str) -> None:
    assert ENDS_LINE.search(f"before{character}after")


def test_whatever_python_takes_for_two_lines_ends_one() -> None:
    ends = [chr(code) for code in range(0x2100) if len(f"a{chr(code)}b".splitlines()) > 1]
    assert [end for end in ends if not CONTROL.search(end)] == []


@pytest.mark.parametrize("name", ["A", "_", "PATH", "_a1", "x_Y_9"])
def test_a_shells_variable(name: str) -> None:
    assert VARIABLE.fullmatch(name)


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A=", "Ä", "A\n", "²"])
def test_what_is_no_variable(name: str) -> None:
    assert not VARIABLE.fullmatch(name)
