"""What is kept of a bug in hpcstack: one file that can be sent."""

from __future__ import annotations

import platform
import sys
import traceback
from datetime import datetime, timezone
from importlib import metadata
from typing import TYPE_CHECKING

from hpcstack import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LIBRARIES = ("click", "pydantic", "pyyaml", "jinja2", "requests", "docker")
KEPT = 20  # reports: a loop that fails must not fill a home directory
# The verbs that run a user's program
OF_PROGRAMS = ("launch", "python", "shell")


def write_bug_report(error: Exception, words: Sequence[str]) -> Path:
    """Write what is known of ERROR, which the command line WORDS met, and return the file.

    Logins in URLs are taken out, and so are a user's program and its arguments.
    OSError or HpcstackError where it cannot be written.
    """
    from hpcstack.core.dirs import find_state_folder
    from hpcstack.core.files import write_text

    folder = find_state_folder() / "bugs"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    moment = datetime.now(timezone.utc)
    path = folder / f"bug-{moment:%Y%m%dT%H%M%S%f}Z.txt"
    write_text(path, render_bug_report(error, words), 0o600)

    for old in sorted(folder.glob("bug-*.txt"))[:-KEPT]:
        old.unlink(missing_ok=True)
    return path


def render_bug_report(error: Exception, words: Sequence[str]) -> str:
    """Return the text of the report: versions, command and traceback."""
    from hpcstack.site.logins import HIDDEN, IN_URL

    lines = [
        f"hpcstack {__version__}",
        f"Python {platform.python_version()} ({sys.executable})",
        f"{platform.platform()}",
        ", ".join(f"{name} {_find_version(name)}" for name in LIBRARIES),
        "",
        f"$ hpcstack {' '.join(_leave_out_program(words))}",
        "",
        *traceback.format_exception(error),
    ]
    text = "\n".join(line.rstrip("\n") for line in lines)
    # A word that is no UTF-8 is a surrogate, which no file takes.
    text = text.encode(errors="backslashreplace").decode()
    return IN_URL.sub(f"{HIDDEN}@", text) + "\n"


def _leave_out_program(words: Sequence[str]) -> list[str]:
    """Return the command line WORDS without a user's program and its arguments.

    These follow a `--`. Where that was left out, `hpcstack python x.py` finds the program by its
    looks, and the bug may be there: so nothing that follows such a verb is kept.
    """
    own = list(words)
    if "--" in own:
        return [*own[: own.index("--")], "--", "..."]

    for at, word in enumerate(own):
        if word in OF_PROGRAMS:
            return [*own[: at + 1], "..."]
    return own


def _find_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not found"
