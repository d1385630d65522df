"""What the job steps of a test run share: where the suite is found, and what is said while it runs. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hpcstack.core.errors import counted
from hpcstack.render.steps import HOME

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.store.artifact import Artifact

Say = Callable[[str], None]
SUITE = f"{HOME}/smoke"
STATUSES = ("PASS", "SKIP", "WARN", "FAIL", "ERROR")
EVERY_S = 10.0  # between two lines about how far it is


def python_path(artifact: Artifact, suite: Path | None) -> str:
    """Where the suite is found: the caller's own, or the image's; then what the image has there."""
    return ":".join(filter(None, (str(suite) if suite else SUITE, artifact.environment.get("PYTHONPATH", ""))))


def watched(say: Say, clock: Callable[[], float] = time.monotonic) -> Callable[[str], None]:
    """What the agent says of each check, as progress: what is wrong at once, else how far it is, now and then.

    The report lists every check; nobody reads them twice.
    """
    done, last = 0, clock()

    def line(text: str) -> None:
        nonlocal done, last
        status, _, rest = text.removeprefix(":: ").partition(" ")
        if not text.startswith(":: ") or status not in STATUSES:
            return
        done += 1
        if status not in ("PASS", "SKIP"):
            say(f"{status} {rest}".strip())
        elif clock() - last >= EVERY_S:
            last = clock()
            say(f"{counted(done, 'check')} done, the last {rest.split(' ')[0]}")

    return line
