"""The text of a file that somebody has, as lines.

Tested in tests/unit/draft/test_draft.py.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError
from hpcstack.core.files import read_bytes
from hpcstack.core.yaml import Mark

if TYPE_CHECKING:
    from pathlib import Path

LARGEST = 1 << 18  # bytes: what people write by hand
KEY = re.compile(r"[{,\s]*[\"']?([\w.$-]+)[\"']?\s*[:=]")  # of TOML or JSON, where a line begins


def read_source(path: Path) -> str:
    """Return the text of PATH, with plain line ends and without a byte order mark.

    Raise InputError where it cannot be read, is no UTF-8, or is not text.
    """
    try:
        text = read_bytes(path.resolve(), LARGEST).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _make_refusal(path, f"byte {error.start} is not UTF-8", "save it as UTF-8") from None
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", "") or str(error)
        raise _make_refusal(path, why, "name another file") from None
    if "\0" in text:
        raise _make_refusal(path, "it is no text", "name another file")
    return text.replace("\r\n", "\n")


def _make_refusal(path: Path, why: str, hint: str) -> InputError:
    return InputError(f"{path} cannot be read: {why}", hint, page="bring-what-you-have")


class KeyLines:
    """Where the keys of a TOML or JSON text stand: the first line that begins with each."""

    def __init__(self, path: Path, text: str) -> None:
        self.file = path.name
        self._lines: dict[str, int] = {}
        self._tables: dict[str, int] = {}
        for number, line in enumerate(text.split("\n"), 1):
            match = KEY.match(line)
            if match:
                self._lines.setdefault(match[1], number)
            if line.lstrip().startswith("["):
                name = line.strip().strip("[]").split(".")[0].strip("\"' ")
                self._tables.setdefault(name, number)

    def find(self, key: str) -> Mark:
        """Return the line of KEY, or of the table of that name; the first line where it has none."""
        return Mark(self.file, self._lines.get(key) or self._tables.get(key) or 1)
