"""Quote text for shells, Lua, Tcl and definition files.

Text from a recipe or a site reaches one of them only through here.
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
    """Return TEXT as one word of a POSIX shell.

    It may also stand in an Apptainer definition, which takes a bare `{{ name }}` for a build
    argument and fails: two braces in a row are written apart.
    """
    quoted = shlex.quote(str(text))  # whatever holds a brace is in single quotes now
    return re.sub(r"(\{)(?=\{)|(\})(?=\})", lambda match: f"{match[0]}''", quoted)


def check_unbroken(text: object) -> str:
    """Return TEXT, which stands on one line of a definition file, whatever quotes are around it.

    Raise InputError where it would end that line. In an Apptainer definition the next line could
    begin a section, which is run by whoever builds; in a Dockerfile, an instruction.
    """
    said = str(text)
    if ENDS_LINE.search(said):
        raise InputError(
            f"a value for a definition file ends its line: {said[:80]!r}",
            "do not use this recipe, lock or image",
        )
    return said


def join_lines(text: object) -> str:
    """Return TEXT as one line, for a comment; line ends and control characters become blanks."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", str(text))


def quote_words(argv: Iterable[object]) -> str:
    """Return ARGV as a command line of quoted words."""
    return " ".join(quote_sh(word) for word in argv)


def quote_lua(text: object) -> str:
    """Return TEXT as a Lua string in double quotes; bytes outside plain ASCII are written \\ddd."""
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
    """Return TEXT as a Lua string between long brackets, as people write several lines.

    One line, and text that Lua would change, come in double quotes: between long brackets Lua
    turns carriage returns into newlines. https://www.lua.org/manual/5.3/manual.html#3.1
    """
    said = str(text)
    if "\n" not in said or not all(char == "\n" or char.isprintable() for char in said):
        return quote_lua(said)
    # The lowest level whose closing bracket is not in the text, nor made by its end.
    level = next(n for n in range(len(said) + 1) if f"]{'=' * n}]" not in f"{said}]{'=' * n}")
    return f"[{'=' * level}[\n{said}]{'=' * level}]"


def quote_dockerfile(text: object) -> str:
    """Return TEXT as a value of ENV or LABEL: in double quotes, with nothing expanded.

    Raise InputError where it would end its line.
    """
    escaped = check_unbroken(text).replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{escaped}"'


def quote_exec_form(words_of: Iterable[object]) -> str:
    """Return WORDS_OF a command in a Dockerfile's exec form: a JSON array of strings."""
    return json.dumps([str(word) for word in words_of])


def quote_tcl(text: object) -> str:
    """Return TEXT as a Tcl word in double quotes, with nothing substituted.

    What is not plain ASCII is written as \\uXXXX.
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
            # Tcl 8.6 has no escape for what lies beyond the basic plane, and takes it as it is.
            out.append(char)
    return f'"{"".join(out)}"'
