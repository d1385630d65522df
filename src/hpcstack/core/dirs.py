"""Folders of the user's own, by the XDG base directories. https://specifications.freedesktop.org/basedir-spec/"""

from __future__ import annotations

import os
from pathlib import Path


def state_folder() -> Path:
    """Where launches and test runs are kept: below the user's home, which the nodes see."""
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local/state")
    return Path(home) / "hpcstack"
