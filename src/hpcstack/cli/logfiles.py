"""Logs, read from their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.cli.session import say

if TYPE_CHECKING:
    from pathlib import Path

MOST = 256 << 20  # bytes of a log; of a longer one the end is read


def end_of(path: Path, most: int = MOST) -> str:
    """The last bytes of a log, as text: MOST of them."""
    from hpcstack.core.errors import InputError

    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - most))
            if size > most:
                say(f"{path} has {size / 1e6:.0f} MB: the last {most / 1e6:.0f} are read")
            return file.read().decode(errors="replace")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
