"""Read what agents and ranks have left in a run's folder so far, while the run goes on."""

from __future__ import annotations

import contextlib
import glob
import json
import os
from typing import Any

from hpcstack_smoke.result import write_document


def read_documents(output: str, pattern: str) -> list[dict[str, Any]]:
    """Return the JSON documents in OUTPUT whose file names match PATTERN.

    A file that cannot be read now is left out: it may be replaced at the same time.
    """
    out = []
    for path in glob.glob(os.path.join(glob.escape(output), pattern)):
        with contextlib.suppress(OSError, ValueError), open(path) as file:
            out.append(json.load(file))
    return out


def bring_notes(scratch: str, output: str) -> None:
    """Move what ranks of this node have noted in SCRATCH into OUTPUT, the run's folder."""
    for path in glob.glob(os.path.join(glob.escape(scratch), "rank-*.json")):
        # a rank that was killed may have left a file that is not whole: its first one still counts
        with contextlib.suppress(OSError, ValueError):
            with open(path) as file:
                document = json.load(file)
            write_document(output, os.path.basename(path), document)
            os.unlink(path)


def has_failed(output: str) -> bool:
    """Whether any node, rank or task left a FAIL or ERROR, or an agent ended its ranks.

    A process of an own check that did not end with 0 counts, too.
    """
    documents = []
    for pattern in ("node-*.json", "rank-*.json", "task-*.json", "own-*.json"):
        documents += read_documents(output, pattern)
    for document in documents:
        if document.get("failed"):
            return True
        for row in document.get("rows", []):
            if row["status"] in ("FAIL", "ERROR"):
                return True
    return bool(glob.glob(os.path.join(glob.escape(output), "ended-*.json")))


def is_being_ended(output: str, number: int | str) -> bool:
    """Whether the agent of some node has ended its ranks of round NUMBER, or is about to.

    What ranks of other nodes see from then on, such as a closed connection, follows from that.
    """
    return bool(glob.glob(os.path.join(glob.escape(output), f"ended-*-{number}.json")))


def find_last_change(output: str) -> float:
    """Return when the folder OUTPUT last changed, by the file server's clock; 0 if unknown.

    Every file of a run comes into the folder by rename, which changes the folder itself.
    """
    try:
        return os.stat(output).st_mtime
    except OSError:
        return 0.0


def list_attempted(output: str, number: int) -> list[str]:
    """Return the codes of the checks that any rank began in round NUMBER, sorted."""
    codes: set[str] = set()
    for document in read_documents(output, f"rank-*-{number}.json"):
        codes.update(row["code"] for row in document["rows"])
        codes.add(document.get("running", ""))
    codes.discard("")
    return sorted(codes)
