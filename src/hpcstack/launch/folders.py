"""Whether the nodes will see the folder that a launch begins in, as far as this machine can tell.

Pure but for stat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.core.mounts import filesystem_of

if TYPE_CHECKING:
    from pathlib import Path

OWN = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # each machine's own, on nearly every cluster
# Filesystems of one machine: of its disks or its memory.
# https://docs.kernel.org/filesystems/index.html
LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay")


def own_folder(folder: Path, shared: Path, mounts: str) -> str:
    """Why the nodes may lack FOLDER; "" where nothing says so.

    SHARED is what nodes do see (the store): whatever lies on the same filesystem, they see, too.
    MOUNTS is the text of /proc/self/mountinfo.
    """
    if any(folder.is_relative_to(place) for place in OWN):
        return f"{folder} is this machine's own on most clusters"
    try:
        if folder.stat().st_dev == shared.stat().st_dev:
            return ""
        device = folder.stat().st_dev
    except OSError:
        return ""
    found = filesystem_of(device, mounts)
    return f"{folder} is on a disk of this machine's own ({found})" if found in LOCAL else ""
