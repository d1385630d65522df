"""The words of a Dockerfile's instruction, and what its variables stand for.

The rules are BuildKit's: frontend/dockerfile/parser/line_parsers.go (`parseWords`) and
frontend/dockerfile/shell/lex.go. tests/unit/draft/test_dockerfile.py holds them against BuildKit's
own parser.

What the base has in a variable is not known here. Such a variable stands in a value as a `Mark`.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    # A variable's value by its name, which may hold marks; None where it is known to have none
    Values = Callable[[str], str | None]

# NAME of the base, what stands before and behind its value if it has one. A Dockerfile cannot hold
# the character: bash takes none in a script, either.
OF_BASE = re.compile("\0([A-Za-z_][A-Za-z0-9_]*)\0([^\0]*)\0([^\0]*)\0")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-]")
BLANKS = " \t\r\n\f\v"
LARGEST = 1 << 16  # characters of a value: `A=$A$A` doubles it


class NotUnderstood(Exception):
    """A value is written in a way that is not understood; the text says why."""


def mark_base(name: str, before: str = "", behind: str = "") -> str:
    """Return what stands for the base's value of NAME, with BEFORE and BEHIND it if it has one."""
    return f"\0{name}\0{before}\0{behind}\0"


def split_words(text: str, escape: str) -> list[str]:
    """Return the words of TEXT, with their quotes; ESCAPE is the character before a literal one."""
    words: list[str] = []
    word = quote = ""
    is_open = False
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if not quote and char in BLANKS:
            if is_open:
                words.append(word)
            word, is_open = "", False
            continue

        word += char
        is_open = True
        if char == escape and quote != "'" and at < len(text):
            word += text[at]
            at += 1
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
    return [*words, word] if is_open else words


def expand_value(text: str, values: Values, escape: str) -> str:
    """Return TEXT without its quotes and with the VALUES of its variables.

    Raise NotUnderstood for a form of `${...}` that BuildKit has and this has not, and for an open
    quote.
    """
    try:
        return _ValueReader(text, values, escape).read_until("")
    except RecursionError:
        raise NotUnderstood("it is nested too deeply") from None


@dataclass
class _ValueReader:
    text: str
    values: Values
    escape: str
    at: int = 0

    def _take(self) -> str:
        """Return the next character; empty at the end."""
        char = self.text[self.at : self.at + 1]
        self.at += 1
        return char

    def read_until(self, end: str) -> str:
        """Return what stands before END, a character, or before the end of the text."""
        out = ""
        while char := self._take():
            if char == end:
                return out
            if char == "'":
                out += self._read_single()
            elif char == '"':
                out += self._read_double()
            elif char == "$":
                out += self._read_variable()
            elif char == self.escape:
                out += self._take()
            else:
                out += char
            if len(out) > LARGEST:
                raise NotUnderstood(f"its value is longer than {LARGEST} characters")
        if end:
            raise NotUnderstood(f"there is no {end} at its end")
        return out

    def _read_single(self) -> str:
        end = self.text.find("'", self.at)
        if end < 0:
            raise NotUnderstood("there is no ' at its end")
        found, self.at = self.text[self.at : end], end + 1
        return found

    def _read_double(self) -> str:
        out = ""
        while char := self._take():
            if char == '"':
                return out
            if char == "$":
                out += self._read_variable()
            elif char == self.escape:
                behind = self._take()
                out += behind if behind in ('"', "$", self.escape) else char + behind
            else:
                out += char
        raise NotUnderstood('there is no " at its end')

    def _read_variable(self) -> str:
        """Return the value of the variable whose `$` was read."""
        if self.text[self.at : self.at + 1] != "{":
            match = NAME.match(self.text, self.at)
            if not match:
                return "$"
            self.at = match.end()
            return self.values(match[0]) or ""

        match = NAME.match(self.text, self.at + 1)
        if not match:
            raise NotUnderstood(f"{self.text[self.at - 1 :][:20]} names no variable")
        self.at = match.end()
        operator = self._take()
        if operator == "}":
            return self.values(match[0]) or ""
        is_also_if_empty = operator == ":"
        if is_also_if_empty:
            operator = self._take()
        if operator not in ("-", "+"):
            raise NotUnderstood(f"${{{match[0]}{operator}...}} is not understood here")
        word = self.read_until("}")
        value = self.values(match[0])
        if is_also_if_empty:
            value = value or None
        return _choose(match[0], operator, word, value)


def _choose(name: str, operator: str, word: str, value: str | None) -> str:
    """Return `${NAME-WORD}` or `${NAME+WORD}`, where the variable has VALUE; None: it has none."""
    if value is None:
        return word if operator == "-" else ""
    if value != mark_base(name):
        return value if operator == "-" else word

    # The base decides. What is often written is understood: a separator and the value itself.
    before, sign, behind = word.partition(value)
    if operator == "+" and sign and not OF_BASE.search(before + behind):
        return mark_base(name, before, behind)
    raise NotUnderstood(f"it depends on {name} of the base, which is not known here")


def quote_value(value: str) -> str:
    """Return VALUE as a word of bash; what the base has is there when the word is read."""
    out = ""
    at = 0
    for mark in OF_BASE.finditer(value):
        out += _quote_piece(value[at : mark.start()])
        name, before, behind = mark.groups()
        if before or behind:
            first, last = (re.sub(r'([\\"`$])', r"\\\1", text) for text in (before, behind))
            out += f'"${{{name}:+{first}${name}{last}}}"'
        else:
            out += f'"${name}"'
        at = mark.end()
    return (out + _quote_piece(value[at:])) or "''"


def _quote_piece(text: str) -> str:
    return shlex.quote(text) if text else ""


def split_around_base(name: str, value: str) -> tuple[str, list[str], list[str]]:
    """Return (the separator, the parts before, the parts after) of the base's own NAME in VALUE.

    Raise NotUnderstood where VALUE is not that: parts around the base's value of the same variable.
    """
    marks = list(OF_BASE.finditer(value))
    if len(marks) != 1 or marks[0][1] != name:
        others = ", ".join(dict.fromkeys(mark[1] for mark in marks))
        raise NotUnderstood(f"it holds {others} of the base, which is not known here")

    mark = marks[0]
    before = value[: mark.start()] + mark[2]
    behind = mark[3] + value[mark.end() :]
    separators = {*before[-1:], *behind[:1]}
    if len(separators) != 1 or not separators <= set(": ,;"):
        raise NotUnderstood(f"nothing separates it from {name} of the base")
    separator = separators.pop()
    return (
        separator,
        [part for part in before.split(separator) if part],
        [part for part in behind.split(separator) if part],
    )
