"""The whole text of a log, fed line by line: what `examine_log` spares itself."""

from __future__ import annotations

from hpcstack.launch.failure import Failure


def find_failure(text: str) -> Failure:
    """What TEXT says of the step's end."""
    out = Failure()
    for line in text.replace("\r\n", "\n").split("\n"):
        for drawing in list(filter(None, line.split("\r"))) or [""]:
            out.feed(drawing)
    return out
