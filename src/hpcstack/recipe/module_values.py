"""Which values Lmod and Environment Modules change when a module sets them.

A value that one of them changes is another on the next cluster, and publishing would find it only
after a build. So a recipe with one is refused. What is known here was seen with Lmod 8.6.19 and
Environment Modules 5.2: tests/integration/test_module_values.py asks the installed ones.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

HOME = re.compile(r"(?:^|:)~")  # Environment Modules writes a home in its place, wherever it is
AT_HOME = "Environment Modules writes a home directory for ~"


def explain_changed_value(value: str) -> str:
    """Return what a module system makes of VALUE of a variable; empty if it stays as it is."""
    return f"{AT_HOME}: {value}" if HOME.search(value) else ""


def explain_changed_part(parts: Iterable[str], separator: str) -> str:
    """Return what a module system makes of one of PARTS of a variable that SEPARATOR stands between.

    Empty if all stay as they are.
    """
    for part in parts:
        if HOME.search(part):
            return f"{AT_HOME}: {part}"
        if separator in part:
            return f"the part {part} has the separator {separator!r} in it: name two parts"
        normal = normalize_part(part)
        if normal != part:
            return (
                f"Lmod writes {normal!r} for the part {part!r}: write it so, or set the whole "
                "variable"
            )
    return ""


def normalize_part(part: str) -> str:
    """Return PART of a variable as Lmod's prepend_path and append_path write it.

    Lmod takes each part for a path (path_regularize in its fileOps.lua).
    """
    text = re.sub(r"//+", "/", part.strip()).removesuffix("/")
    if not text:
        return ""
    first, *rest = text.split("/")
    names = [name for name in rest if name != "."]
    if first != "." or not names:
        names = [first, *names]
    ends_in_two = re.search(r"[^/]//$", part)
    return "/".join(names) + ("//" if ends_in_two else "")
