"""Which characters are refused or stand for something wherever text of others goes."""

from __future__ import annotations

import re

CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\x85\u2028\u2029]")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # what a shell calls a variable; by fullmatch
ENDS_LINE = re.compile(r"[\x00\n\r\x0b\x0c\x1b\x85\u2028\u2029]")
