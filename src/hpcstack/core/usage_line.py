"""The line of syslog that says who loaded or launched what, as it is written and read.

    hpcstack-usage: v1 what=load release=pytorch/24.11-r2 user=me job=1234 at=1764150000

Lmod and Environment Modules write it when a release is loaded (modules/usage-hook.*), `launch` when
a step or job is started. It stands behind whatever the site's syslog puts before it. Anybody on the
machine may write such a line: it counts, and proves nothing.

Tested in tests/unit/publish/test_usage.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

TAG = "hpcstack-usage"
WORD = r"[\w./+@?-]{1,100}"
LINE = re.compile(
    rf"\b{TAG}(?:\[\d+\])?: v1 what=(?P<what>load|launch) release=(?P<release>{WORD}) "
    rf"user=(?P<user>{WORD}) job=(?P<job>{WORD}) at=(?P<at>\d{{1,12}})\s*$",
    re.ASCII,
)
NO_JOB = "-"


@dataclass(frozen=True)
class LoggedUse:
    """One load or launch."""

    what: Literal["load", "launch"]
    release: str  # pytorch/24.11-r2; of an image that is not published its stack
    user: str
    job: str  # `-` on a login node
    at: int  # seconds since 1970


def format_use(use: LoggedUse) -> str:
    """Return the line for USE, without the tag. What no word may have becomes a question mark."""

    def plain(text: str) -> str:
        return re.sub(r"[^\w./+@-]", "?", text, flags=re.ASCII)[:100] or "?"

    words = plain(use.release), plain(use.user), plain(use.job)
    return "v1 what={} release={} user={} job={} at={}".format(use.what, *words, use.at)


def parse_use(line: str) -> LoggedUse | None:
    """Return the use that LINE tells of; None where it tells of none."""
    match = LINE.search(line)
    if not match:
        return None
    what: Literal["load", "launch"] = "load" if match["what"] == "load" else "launch"
    return LoggedUse(what, match["release"], match["user"], match["job"], int(match["at"]))
