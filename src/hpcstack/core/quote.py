"""Quoting: text that came from a recipe or a site reaches a shell, Lua or a definition file only
through here.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING

from hpcstack.core.characters import ENDS_LINE
from hpcstack.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable


def quote_sh(text: object) -> str:
    """One word of a POSIX shell, also inside an Apptainer definition, where a bare `{{ name }}` is
    fatal.
    """
    quoted = shlex.quote(str(text))  # whatever holds a brace is in single quotes now
    return re.sub(r"(\{)(?=\{)|(\})(?=\})", lambda match: f"{match[0]}''", quoted)


def check_unbroken(text: object) -> str:
    """TEXT, which stands on one line of a definition file, whatever quotes are around it there.

    InputError where it would end that line: in an Apptainer definition the next one could begin a
    section, which is run by whoever builds; in a Dockerfile an instruction.
    """
    said = str(text)
    if ENDS_LINE.search(said):
        raise InputError(
            f"what would be written into a definition file ends its line: {said[:80]!r}",
            "do not use this recipe, lock or image",
        )
    return said


def join_lines(text: object) -> str:
    """TEXT as one line, for a comment: what would end it, or command a terminal, is a blank."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", str(text))


def quote_words(argv: Iterable[object]) -> str:
    """A command line of quoted words."""
    return " ".join(quote_sh(word) for word in argv)


def quote_lua(text: object) -> str:
    """A Lua string in double quotes; every byte that is not plain ASCII is written as \\ddd."""
    out = []
    for byte in str(text).encode():
        char = chr(byte)
        if char in '\\"':
            out.append(f"\\{char}")
        elif 32 <= byte < 127:
            out.append(char)
        else:
            out.append(f"\\{byte:03d}")
    return f'"{"".join(out)}"'


def lua_lines(text: object) -> str:
    """A Lua string between long brackets, as people write several lines; in double quotes where Lua
    would change it.

    Lua makes other line ends of carriage returns. https://www.lua.org/manual/5.3/manual.html#3.1
    """
    said = str(text)
    if "\n" not in said or not all(char == "\n" or char.isprintable() for char in said):
        return quote_lua(said)
    level = next(n for n in range(len(said) + 1) if f"]{'=' * n}]" not in f"{said}]{'=' * n}")
    return f"[{'=' * level}[\n{said}]{'=' * level}]"


def quote_dockerfile(text: object) -> str:
    """A value of ENV or LABEL in a Dockerfile: in double quotes, with nothing expanded."""
    escaped = check_unbroken(text).replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{escaped}"'


def quote_exec_form(words_of: Iterable[object]) -> str:
    """A Dockerfile's exec form: a JSON array of texts."""
    return json.dumps([str(word) for word in words_of])


def quote_tcl(text: object) -> str:
    """A Tcl word in double quotes, with nothing substituted; what is not plain ASCII is written as
    \\uXXXX.
    """
    out = []
    for char in str(text):
        if char in '\\"$[]{};#':
            out.append(f"\\{char}")
        elif 32 <= ord(char) < 127:
            out.append(char)
        elif ord(char) < 0x10000:
            out.append(f"\\u{ord(char):04x}")
        else:
            out.append(
                char
            )  # Tcl 8.6 has no escape for what lies beyond the basic plane, and takes it as it is
    return f'"{"".join(out)}"'
