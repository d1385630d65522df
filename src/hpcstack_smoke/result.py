"""The result of a check, and how a check is run so that it always leaves one."""

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
    """The result of one check on one node or rank."""

    status: str
    measured: str = ""
    expected: str = ""
    source: str = ""  # who says that this is to be expected
    evidence: str = ""
    remedy: str = ""
    # {name: number}; the name ends in the unit, as in `busbw_GB_s`
    figures: dict[str, float] = field(default_factory=dict)
    # curves for the report, each {name, x, y, x_unit, y_unit}
    series: list[dict[str, Any]] = field(default_factory=list)
    # {software or hardware: version}; runs that differ in one cannot be compared
    versions: dict[str, str] = field(default_factory=dict)
    informational: bool = False  # the figures say nothing of what the hardware can do
    needs_root: bool = False  # skipped, since only root may read this on this machine
    # skipped, or less than could be, since this hardware was made so: no user can make it PASS
    not_built_in: bool = False


class Skip(Exception):
    """Raised by a check that has nothing to look at here. A missing device is never a PASS."""


class NotBuiltIn(Skip):
    """Raised by a check of something that this hardware was made without, and says so itself."""


class NeedsRoot(Skip):
    """Raised by a check that needs what only root may read on this machine."""


def judge_result(
    good: bool,
    measured: str,
    expected: str,
    source: str = "",
    evidence: str = "",
    remedy: str = "",
    **more: Any,
) -> Result:
    """Return PASS, without REMEDY, if GOOD; else FAIL. MORE are further fields of the result."""
    if good:
        return Result(PASS, measured, expected, source, evidence, **more)
    return Result(FAIL, measured, expected, source, evidence, remedy, **more)


def run_check(code: str, check: Callable[[], Result], where: str) -> dict[str, Any]:
    """Run CHECK and return its row: CODE, WHERE, the seconds it took, and its result's fields.

    `Skip` becomes a SKIP, any other exception an ERROR with the place that raised it.
    """
    began = time.monotonic()
    try:
        result = check()
    except Skip as reason:
        result = Result(
            SKIP,
            evidence=str(reason),
            needs_root=isinstance(reason, NeedsRoot),
            not_built_in=isinstance(reason, NotBuiltIn),
        )
    # the one place of the suite that catches everything: a broken check is an ERROR, not a crash
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(last.filename)}:{last.lineno}"
        said = f"{type(error).__name__}: {error} ({place})".replace("\n", " ")
        result = Result(ERROR, evidence=said[:600])
    return {
        "code": code,
        "where": where,
        "seconds": round(time.monotonic() - began, 3),
        **asdict(result),
    }


def write_document(folder: str, name: str, document: dict[str, Any], mode: int = 0o644) -> None:
    """Write DOCUMENT as JSON to FOLDER/NAME, by rename: readers see all of it or nothing."""
    handle, part = tempfile.mkstemp(dir=folder, prefix=f".{name}.")
    with os.fdopen(handle, "w") as file:
        json.dump(document, file, indent=1)
    os.chmod(part, mode)
    os.replace(part, os.path.join(folder, name))
