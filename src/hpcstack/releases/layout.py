"""Names and places in a module tree. Pure. releases/tree.py says what lies where.

Tested in tests/unit/releases/test_seal.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CORE, TCL, MORE, STATE, GATE = "Core", "Tcl", "more", "state", "hpcstack"
JOURNAL, CURRENT = "journal.json", "current"
SPIDER, STALE = "spider", "stale"


def name_dates_file(root: Path, name: str, version: str) -> Path:
    """Return the file in which a modulefile looks up its version's dates whenever it is loaded."""
    return root / STATE / name / CURRENT / "dates" / version
