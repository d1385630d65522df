"""What agents and ranks left in a run's folder, read while the run goes on."""

from __future__ import annotations

import contextlib
import glob
import json
import os
from typing import Any


def read_documents(output: str, pattern: str) -> list[dict[str, Any]]:
    """What the ranks of one round left."""
    out = []
    for path in glob.glob(os.path.join(glob.escape(output), pattern)):
        with (
            contextlib.suppress(OSError, ValueError),
            open(path) as file,
        ):  # it may be replaced while it is read
            out.append(json.load(file))
    return out


def has_failed(output: str) -> bool:
    """Whether a row of any node or rank is a FAIL or an ERROR, or a rank ended in the middle of a
    check.
    """
    found = [
        one
        for pattern in ("node-*.json", "rank-*.json", "task-*.json")
        for one in read_documents(output, pattern)
    ]
    bad = any(row["status"] in ("FAIL", "ERROR") for one in found for row in one.get("rows", []))
    return bad or bool(glob.glob(os.path.join(glob.escape(output), "ended-*.json")))


def find_last_change(output: str) -> float:
    """When the folder last changed, by the file server's clock: every file of a run appears there
    by rename.
    """
    try:
        return os.stat(output).st_mtime
    except OSError:
        return 0.0


def list_attempted(output: str, number: int) -> list[str]:
    """The codes that any rank began in round NUMBER."""
    codes = []
    for document in read_documents(output, f"rank-*-{number}.json"):
        codes += [row["code"] for row in document["rows"]] + [document.get("running", "")]
    return sorted({code for code in codes if code})
