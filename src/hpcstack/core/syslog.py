"""Tell the system's syslog a line, without ever waiting for it.

syslog(3) waits where the daemon does not read, and so a daemon that hangs would hold up everybody.
Here such a line is lost.

Tested in tests/unit/publish/test_usage.py.
"""

from __future__ import annotations

import contextlib
import socket
import time

DEV_LOG = "/dev/log"
USER_INFO = 14  # https://www.rfc-editor.org/rfc/rfc3164#section-4.1.1: facility user, severity info


def tell_syslog(tag: str, text: str) -> None:
    """Send TEXT, one line, under TAG; nothing is raised where nobody takes it."""
    line = f"<{USER_INFO}>{time.strftime('%b %e %H:%M:%S')} {tag}: {' '.join(text.split())}"
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.setblocking(False)
        log.connect(DEV_LOG)
        log.send(line.encode())
