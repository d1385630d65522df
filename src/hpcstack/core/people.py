"""Who runs this, as the system knows it: not by a variable, which anybody may set.

Tested in tests/unit/publish/test_approval.py.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from pathlib import Path

from hpcstack.core.namespaces import is_machines_namespace

LOGIN_UID = Path("/proc/self/loginuid")  # of who logged in: it stays through sudo and su
UID_MAP = Path("/proc/self/uid_map")
UNSET = 4294967295  # what it says where nobody logged in, as in a job or from cron


def name_caller() -> str:
    """Return the login name of who runs this; the numeric user ID where there is no name."""
    number = _find_uid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _find_uid() -> int:
    """Return the user ID of who logged in; else who became root by sudo; else who this runs as."""
    own = os.getuid()
    if not is_machines_namespace():
        # whoever makes a user namespace is any user in it: outside it is one
        return _map_outside(own)
    with contextlib.suppress(OSError, ValueError):
        login = int(LOGIN_UID.read_text())
        if login != UNSET:
            return login
    if own == 0:
        with contextlib.suppress(ValueError):  # root alone can have changed it
            return int(os.environ.get("SUDO_UID", ""))
    return own


def _map_outside(uid: int) -> int:
    """Return which user UID of this namespace is in the one around it."""
    with contextlib.suppress(OSError, ValueError):
        for line in UID_MAP.read_text().splitlines():
            inside, outside, count = map(int, line.split())
            if inside <= uid < inside + count:
                return outside + uid - inside
    return uid
