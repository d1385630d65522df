"""JSON and texts of others: bounded, shallow, free of what controls a terminal. Pure.

Tested in tests/hostile/test_registries.py.
"""

from __future__ import annotations

import json
import re
from typing import Any

MAX_DEPTH = 64  # of objects and arrays in each other
# What ends a line in some reader, controls a terminal, changes the direction of text, or is half of
# a surrogate pair.
UNSAFE = re.compile(
    r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
# In a word of a command, a line may end: it may be a script, behind `sh -c`.
UNSAFE_IN_WORDS = re.compile(UNSAFE.pattern.replace(r"\x0a-", r"\x0b-"))
NAMES = {
    "\n": "a line end",
    "\r": "a carriage return",
    "\x1b": "an escape character",
    "\0": "a null character",
}


def read_safe_text(text: str) -> str:
    """Return TEXT, which an image says. Raise ValueError for characters that UNSAFE matches."""
    if match := UNSAFE.search(text):
        raise ValueError(f"contains {name_character(match[0])}")
    return text


def read_safe_word(text: str) -> str:
    """Return TEXT, a word of a command of an image. Raise ValueError for characters that
    UNSAFE_IN_WORDS matches.
    """
    if match := UNSAFE_IN_WORDS.search(text):
        raise ValueError(f"contains {name_character(match[0])}")
    return text


class Nonsense(TypeError):
    """A document or a config has parts of other types than its format allows."""


def parse_untrusted_json(data: bytes, limit: int) -> dict[str, Any]:
    """Return the JSON object that DATA holds.

    Raise ValueError for more than LIMIT bytes, for nesting deeper than MAX_DEPTH, and for anything
    but an object.
    """
    if len(data) > limit:
        raise ValueError(f"a document of more than {limit} bytes")
    try:
        found = json.loads(data)
    except RecursionError:
        raise ValueError("a document that is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("a document that is not an object")
    _check_depth(found)
    return found


def _check_depth(found: object) -> None:
    """Raise ValueError where FOUND is nested more than MAX_DEPTH deep; it takes no recursion."""
    level = [found]
    for _ in range(MAX_DEPTH):
        level = [item for one in level for item in _collections_in(one)]
        if not level:
            return
    raise ValueError("a document that is nested too deeply")


def _collections_in(one: object) -> list[Any]:
    """Return the objects and arrays that lie directly in ONE."""
    values: Any = ()
    if isinstance(one, dict):
        values = one.values()
    elif isinstance(one, list):
        values = one
    return [item for item in values if isinstance(item, (dict, list))]


def name_character(char: str) -> str:
    """Return how a message names CHAR, which cannot be shown itself."""
    return NAMES.get(char, f"the character U+{ord(char):04X}, which is not shown or breaks a line")
