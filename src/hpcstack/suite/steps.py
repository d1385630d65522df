"""What the job steps of a test run share: where they find the suite, and how progress is told.

Pure.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hpcstack.core.errors import format_count
from hpcstack.render.steps import HOME

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hpcstack.core.progress import Say
    from hpcstack.store.artifact import Artifact

SUITE = f"{HOME}/smoke"  # in the image
# DONE is told of an own check, which hpcstack judges later
GOOD = ("PASS", "SKIP", "DONE")
STATUSES = (*GOOD, "WARN", "FAIL", "ERROR")
EVERY_S = 10.0  # between two lines that say how far the run is


def python_path(artifact: Artifact, suite: Path | None) -> str:
    """Return the PYTHONPATH of a step: where the suite is, then what the image has there.

    SUITE is a suite to use in place of the image's.
    """
    own = str(suite) if suite else SUITE
    images = artifact.environment.get("PYTHONPATH", "")
    return f"{own}:{images}" if images else own


def watch_steps(say: Say, clock: Callable[[], float] = time.monotonic) -> Say:
    """Return a function that takes each line of a step's output, and tells progress by SAY.

    The agent prints a line for each check. What is wrong is told at once; else, now and then, how
    many checks are done. More would be too much: the report lists every check.
    """
    done = 0
    last = clock()

    def take_line(text: str) -> None:
        nonlocal done, last
        status, _, rest = text.removeprefix(":: ").partition(" ")
        if not text.startswith(":: ") or status not in STATUSES:
            return
        done += 1
        if status not in GOOD:
            say(f"{status} {rest}".strip())
        elif clock() - last >= EVERY_S:
            last = clock()
            code = rest.split(" ")[0]
            say(f"{format_count(done, 'check')} done, the last {code}")

    return take_line
