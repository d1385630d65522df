"""Read logs from their end.

Tested in tests/unit/cli/test_explain.py and tests/unit/cli/test_verbs.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.cli.session import say

if TYPE_CHECKING:
    from pathlib import Path

MOST = 256 << 20  # bytes that are read of a log; of a longer one, its end


def end_of(path: Path, most: int = MOST) -> str:
    """Return the end of the log at PATH as text: at most MOST bytes.

    Raise InputError where it cannot be read.
    """
    from hpcstack.core.errors import InputError
    from hpcstack.launch.log_lines import decode_log

    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - most))
            if size > most:
                say(f"{path} has {size / 1e6:.0f} MB: only the last {most / 1e6:.0f} MB are read")
            return decode_log(file.read())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
