"""What a check says: a status, what was measured, what was expected and by whose word, the
evidence, the remedy.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PASS, FAIL, SKIP, WARN, ERROR = "PASS", "FAIL", "SKIP", "WARN", "ERROR"


@dataclass(frozen=True)
class Result:
    """One check on one node or rank.

    `figures`: {name: number}, the unit at the name's end (`busbw_GB_s`). `series`: what is drawn,
    each {name, x, y, x_unit, y_unit}. `informational`: the figures say nothing of what the hardware
    can do. `versions`: {what: its version}, of what tells apart runs that cannot be compared.
    `needs_root`: it was skipped, as only root may read that on this machine.
    """

    status: str
    measured: str = ""
    expected: str = ""
    source: str = ""
    evidence: str = ""
    remedy: str = ""
    figures: dict[str, float] = field(default_factory=dict)
    series: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    informational: bool = False
    needs_root: bool = False


class Skip(Exception):
    """Raised by a check that has nothing to look at here; a missing device is never a PASS."""


class NeedsRoot(Skip):
    """Raised by a check of what only root may read on this machine."""


def judge_result(
    good: bool,
    measured: str,
    expected: str,
    source: str = "",
    evidence: str = "",
    remedy: str = "",
    **more: Any,
) -> Result:
    """PASS or FAIL."""
    return Result(
        PASS if good else FAIL, measured, expected, source, evidence, "" if good else remedy, **more
    )


def run_check(code: str, check: Callable[[], Result], where: str) -> dict[str, Any]:
    """The row of one check; what it raises becomes SKIP or ERROR."""
    began = time.monotonic()
    try:
        result = check()
    except Skip as reason:
        result = Result(SKIP, evidence=str(reason), needs_root=isinstance(reason, NeedsRoot))
    except (
        Exception
    ) as error:  # the one boundary of the suite: a broken check is an ERROR, not a crash
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(last.filename)}:{last.lineno}"
        result = Result(
            ERROR, evidence=f"{type(error).__name__}: {error} ({place})".replace("\n", " ")[:600]
        )
    return {
        "code": code,
        "where": where,
        "seconds": round(time.monotonic() - began, 3),
        **asdict(result),
    }


def write_document(folder: str, name: str, document: dict[str, Any], mode: int = 0o644) -> None:
    """DOCUMENT as FOLDER/NAME, whole or not at all."""
    handle, part = tempfile.mkstemp(dir=folder, prefix=f".{name}.")
    with os.fdopen(handle, "w") as file:
        json.dump(document, file, indent=1)
    os.chmod(part, mode)
    os.replace(part, os.path.join(folder, name))
