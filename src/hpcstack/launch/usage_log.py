"""Write the line of syslog about a launch, where the site wants it (usage.log).

Tested in tests/unit/publish/test_usage.py.
"""

from __future__ import annotations

import os
import pwd
import time
from typing import TYPE_CHECKING

from hpcstack.core.syslog import tell_syslog
from hpcstack.core.usage_line import NO_JOB, TAG, LoggedUse, format_use

if TYPE_CHECKING:
    from collections.abc import Mapping


def log_launch(release: str, environ: Mapping[str, str]) -> None:
    """Tell syslog that RELEASE is launched, or a stack that is none.

    Nothing is said where there is no syslog, or where it does not take the line at once: a launch
    does not fail for that, nor wait. (syslog(3) waits.)
    """
    use = LoggedUse(
        what="launch",
        release=release,
        user=_find_user(),
        job=environ.get("SLURM_JOB_ID", NO_JOB),
        at=int(time.time()),
    )
    tell_syslog(TAG, format_use(use))


def _find_user() -> str:
    """Return the name of who launches, as the hooks of module systems find it: by the user ID."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a user whom nothing names
        return "unknown"
