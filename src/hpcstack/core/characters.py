"""Patterns of characters: those refused in text of others, and those a name is made of."""

from __future__ import annotations

import re

# What ends a line in some reader, or controls a terminal; a tab is allowed.
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\x85\u2028\u2029]")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # a shell variable's name; use with fullmatch
# What some reader of definition files takes for the end of a line, and the escape character.
ENDS_LINE = re.compile(r"[\x00\n\r\x0b\x0c\x1b\x85\u2028\u2029]")
