"""Which filesystem a file is on, as the kernel names it.

Tested in tests/unit/squashfs/test_splice.py.
"""

from __future__ import annotations

import os
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")  # proc_pid_mountinfo(5)


def find_filesystem(device: int, mounts: str = "") -> str:
    """Return the type, such as ext4, of the filesystem whose files have the st_dev DEVICE.

    "" where it is not known. MOUNTS is the text of /proc/self/mountinfo; it is read where it is not
    given.
    """
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in (mounts or _read_mounts()).splitlines():
        # 36 35 98:0 /mnt1 /mnt2 rw - ext3 /dev/root rw: the number is third, the type behind `-`.
        left, _, right = line.partition(" - ")
        if left.split()[2:3] == [number] and right.split()[:1]:
            return right.split()[0]
    return ""


def _read_mounts() -> str:
    try:
        return MOUNTS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
