"""JSON and texts of others: bounded, shallow, without what commands a terminal. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

MAX_DEPTH = 64
# What ends a line somewhere, commands a terminal, turns text around, or is half a character.
UNSAFE = re.compile(
    r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
NAMES = {
    "\n": "a line end",
    "\r": "a carriage return",
    "\x1b": "an escape character",
    "\0": "a null character",
}


def safe_text(text: str) -> str:
    """TEXT, as an image may say it. ValueError for what `UNSAFE` names."""
    if match := UNSAFE.search(text):
        raise ValueError(f"contains {name_character(match[0])}")
    return text


class Nonsense(TypeError):
    """A document or a config whose parts have other types than they must have."""


def parse_untrusted_json(data: bytes, limit: int) -> dict[str, Any]:
    """The JSON object that DATA is.

    ValueError for more than LIMIT bytes, deeper nesting, or anything else.
    """
    if len(data) > limit:
        raise ValueError(f"a document of more than {limit} bytes")
    try:
        found = json.loads(data)
    except RecursionError:
        raise ValueError("a document that is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("a document that is not an object")
    _shallow(found)
    return found


def _shallow(found: object) -> None:
    level = [found]
    for _ in range(MAX_DEPTH):
        level = [item for one in level for item in _items(one)]
        if not level:
            return
    raise ValueError("a document that is nested too deeply")


def _items(one: object) -> list[Any]:
    values: Any = ()
    if isinstance(one, dict):
        values = one.values()
    elif isinstance(one, list):
        values = one
    return [item for item in values if isinstance(item, (dict, list))]


def name_character(char: str) -> str:
    return NAMES.get(char, f"the character U+{ord(char):04X}, which is not shown or breaks a line")
