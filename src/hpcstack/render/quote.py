"""Quoting: text that came from a recipe or a site reaches a shell, Lua or a definition file only through here."""

from __future__ import annotations

import shlex
from collections.abc import Iterable


def sh(text: object) -> str:
    """One word of a POSIX shell."""
    return shlex.quote(str(text))


def definition(text: object) -> str:
    """One shell word in an Apptainer definition, where a bare `{{ name }}` is a build argument and fatal."""
    quoted = sh(text)
    return quoted.replace("{{", "{''{").replace("}}", "}''}") if quoted.startswith("'") else quoted


def words(argv: Iterable[object]) -> str:
    """A command line of quoted words."""
    return " ".join(sh(word) for word in argv)


def lua(text: object) -> str:
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


def dockerfile(text: object) -> str:
    """A value of ENV or LABEL in a Dockerfile: in double quotes, with nothing expanded."""
    escaped = str(text).replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{escaped}"'
