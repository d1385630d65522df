"""Lua text that holds data and no code.

Lmod executes a spider cache in the shell of each user, so it must be nothing but assignments of
tables.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

# The tokens of Lua 5.1 to 5.4 that data is written with (Lua's manual, 3.1, Lexical Conventions).
# A long bracket ends at the first one of its own level.
TOKEN = re.compile(
    r"""(?P<blank>\s+)
    | (?P<string>"(?:[^"\\\n]|\\[^\n]|\\\n)*"|\[(?P<level>=*)\[.*?\](?P=level)\])
    | (?P<number>-?(?:0x[0-9a-fA-F]+|[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?))
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<mark>[{}\[\],;=])""",
    re.VERBOSE | re.DOTALL,
)
CONSTANTS = frozenset({"true", "false", "nil"})


def check_lua_data(text: str, names: frozenset[str]) -> None:
    """Raise InputError unless TEXT is assignments of tables to some of NAMES, and nothing else.

    There is no way to call anything: a call takes a bracket `(`, or a name or a closing bracket
    that a string or a table follows.
    """
    depth = 0
    before = ""  # the kind of the token before, a mark itself
    for kind, token in _split_tokens(text):
        begins_value = kind in ("string", "number", "constant") or token == "{"
        if begins_value and before not in ("=", "{", ",", ";", "["):
            raise InputError(f"Lmod has printed {token[:60]!r} where data has no value")
        if kind == "name" and depth == 0 and token not in names:
            raise InputError(f"Lmod has printed a value of {token!r}, which a spider cache has not")
        if kind == "name" and before not in ("", "}", "{", ",", ";"):
            raise InputError(f"Lmod has printed {token[:60]!r} where data has no name")
        if token == "=" and before not in ("name", "]"):
            raise InputError("Lmod has printed an assignment to what is no name")
        if token == "[" and before not in ("{", ",", ";"):
            raise InputError("Lmod has printed an index where data has none")

        depth += (token == "{") - (token == "}")
        if depth < 0:
            raise InputError("Lmod has printed a table that ends before it begins")
        before = token if kind == "mark" else kind
    if depth:
        raise InputError("Lmod has printed a table that does not end")


def _split_tokens(text: str) -> Iterator[tuple[str, str]]:
    """Yield (kind, token) for each token of TEXT but blanks. Raise InputError for any other."""
    place = 0
    while place < len(text):
        found = TOKEN.match(text, place)
        if not found:
            raise InputError(f"Lmod has printed {text[place : place + 60]!r}, which is no data")
        place = found.end()
        kind = found.lastgroup or ""
        if kind == "name" and found[0] in CONSTANTS:
            kind = "constant"
        if kind != "blank":
            yield kind, found[0]
