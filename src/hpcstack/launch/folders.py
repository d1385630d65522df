"""Tell, as far as this machine can, whether the nodes will see the folder that a launch begins in.

Pure but for stat.

Tested in tests/unit/cli/test_first_day.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.core.mounts import find_filesystem

if TYPE_CHECKING:
    from pathlib import Path

OWN = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # each machine's own, on nearly every cluster
# Filesystems of one machine, on its disks or in its memory
# https://docs.kernel.org/filesystems/index.html
LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay")


def own_folder(folder: Path, shared: Path, mounts: str) -> str:
    """Return why the nodes may lack FOLDER; empty where nothing says so.

    SHARED is a folder that nodes do see (the store); they see whatever is on the same filesystem,
    too. MOUNTS is the text of /proc/self/mountinfo.
    """
    if any(folder.is_relative_to(place) for place in OWN):
        return f"{folder} is this machine's own on most clusters"
    try:
        device = folder.stat().st_dev
        if device == shared.stat().st_dev:
            return ""
    except OSError:
        return ""
    filesystem = find_filesystem(device, mounts)
    if filesystem not in LOCAL:
        return ""
    return f"{folder} is on a disk of this machine's own ({filesystem})"
