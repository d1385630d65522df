"""The whole text of a log, fed line by line: what `examine_log` spares itself."""

from __future__ import annotations

from hpcstack.launch.failure import Failure


def find_failure(text: str) -> Failure:
    """What TEXT says of the step's end."""
    out = Failure()
    for line in text.split("\n"):
        out.feed(line)
    return out
