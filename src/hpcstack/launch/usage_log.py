"""Write the line of syslog about a launch, where the site wants it (usage.log).

Tested in tests/unit/publish/test_usage.py.
"""

from __future__ import annotations

import contextlib
import getpass
import socket
import time
from typing import TYPE_CHECKING

from hpcstack.core.usage_line import NO_JOB, TAG, LoggedUse, format_use

if TYPE_CHECKING:
    from collections.abc import Mapping

DEV_LOG = "/dev/log"
USER_INFO = 14  # https://www.rfc-editor.org/rfc/rfc3164#section-4.1.1: facility user, severity info


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
    stamp = time.strftime("%b %e %H:%M:%S")
    line = f"<{USER_INFO}>{stamp} {TAG}: {format_use(use)}"
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.setblocking(False)
        log.connect(DEV_LOG)
        log.send(line.encode())


def _find_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user whom nothing names
        return "unknown"
