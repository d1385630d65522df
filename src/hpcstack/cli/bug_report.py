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


def write_bug_report(error: Exception, words: Sequence[str]) -> Path:
    """Write what is known of ERROR, which the command line WORDS met, and return the file.

    Logins in URLs are taken out, and so is what follows `--`: a user's program and its arguments.
    OSError or HpcstackError where it cannot be written.
    """
    from hpcstack.core.dirs import state_folder
    from hpcstack.core.files import write_text

    folder = state_folder() / "bugs"
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

    own = list(words)
    if "--" in own:
        own = [*own[: own.index("--")], "--", "..."]
    lines = [
        f"hpcstack {__version__}",
        f"Python {platform.python_version()} ({sys.executable})",
        f"{platform.platform()}",
        ", ".join(f"{name} {_find_version(name)}" for name in LIBRARIES),
        "",
        f"$ hpcstack {' '.join(own)}",
        "",
        *traceback.format_exception(error),
    ]
    text = "\n".join(line.rstrip("\n") for line in lines)
    return IN_URL.sub(f"{HIDDEN}@", text) + "\n"


def _find_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not found"
