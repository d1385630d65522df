"""What the job steps of a test run share: where the suite is found, and what is said while it runs.

Pure.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hpcstack.core.errors import format_count
from hpcstack.render.steps import HOME

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.store.artifact import Artifact
    from hpcstack_smoke.request import Request

Say = Callable[[str], None]
SUITE = f"{HOME}/smoke"
STATUSES = ("PASS", "SKIP", "WARN", "FAIL", "ERROR")
EVERY_S = 10.0  # between two lines about how far it is


def reads_requests(artifact: Artifact) -> bool:
    """Whether the suite in the image reads request.json; before 0.2 it was asked by options."""
    return tuple(int(part) for part in artifact.suite.split(".") if part.isdecimal()) >= (0, 2)


def old_words(request: Request) -> tuple[str, ...]:
    """REQUEST as the options of a suite before 0.2."""
    one = request
    return (
        "--output",
        one.output,
        "--tests",
        one.tests,
        "--tier",
        one.tier,
        "--skip",
        one.skip,
        "--gpus",
        str(one.gpus),
        "--ranks",
        str(one.ranks),
        "--nodes",
        str(one.nodes),
        "--stack",
        one.stack,
        "--deadline",
        str(one.deadline_s),
        "--fabric-rate",
        str(one.fabric_rate),
    )


def python_path(artifact: Artifact, suite: Path | None) -> str:
    """Where the suite is found: the caller's own, or the image's; then what the image has there."""
    return ":".join(
        filter(None, (str(suite) if suite else SUITE, artifact.environment.get("PYTHONPATH", "")))
    )


def watch_steps(say: Say, clock: Callable[[], float] = time.monotonic) -> Callable[[str], None]:
    """What the agent says of each check, as progress: what is wrong at once, else how far it is,
    now and then.

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
            say(f"{format_count(done, 'check')} done, the last {rest.split(' ')[0]}")

    return line
