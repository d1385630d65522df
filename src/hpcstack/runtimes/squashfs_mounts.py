"""Squashfs files that a container mounts beside its image: data sets, and packages of a user's own.

A container opens one file on the shared disk, however many files it sees. Each runtime does it in
its own way:

- Apptainer binds such a file itself.
- Enroot, also under Pyxis, runs a hook in the container's mount namespace. The hook lies in a
  folder that takes the place of the user's settings of Enroot (`keep_hook`).
- Charliecloud and Podman bind a folder. A script around the task mounts the file there; until
  then, the command line names it @squashfs1, @squashfs2 and so on.

Where a node has no FUSE, the scripts and the hook unpack the file once to the node's own disk.
Apptainer has no such way.

Tested in tests/unit/launch/test_squashfs_files.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core import data
from hpcstack.core.dirs import find_config_home, find_data_home
from hpcstack.core.errors import StoreError
from hpcstack.core.files import write_text

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class SquashfsMount:
    """The squashfs `file` is mounted at `target` in the container.

    `name` stands for what the file holds: files with the same name hold the same.
    """

    file: Path
    name: str
    target: str

    @property
    def mount(self) -> str:
        """The mount as users write it, SOURCE:TARGET."""
        return f"{self.file}:{self.target}"


def list_placeholders(mounts: Iterable[SquashfsMount]) -> dict[str, str]:
    """Return {mount: @squashfsN:TARGET}: what a script on the node replaces by the Nth folder."""
    return {one.mount: f"@squashfs{number}:{one.target}" for number, one in enumerate(mounts, 1)}


def list_words(mounts: Iterable[SquashfsMount]) -> list[str]:
    """Return FILE NAME for each of MOUNTS, as the scripts on the node take them."""
    return [word for one in mounts for word in (str(one.file), one.name)]


# The names of hooks in hooks.d, and the scripts. Each does something only where its variables say so.
HOOKS = {
    "50-hpcstack-squashfs.sh": "on-node/squashfs-hook.sh",
    "60-hpcstack-slurm.sh": "on-node/slurm-hook.sh",
}
# What Enroot looks for in its user's settings, besides hooks.d
# https://github.com/NVIDIA/enroot/blob/main/doc/configuration.md
KEPT = ("mounts.d", "environ.d", ".credentials")


@dataclass(frozen=True)
class EnrootHook:
    """The folder of settings with which Enroot opens squashfs files, and what it is to be told."""

    folder: Path
    own: Path  # the user's own settings

    def place(self, number: int) -> Path:
        """Return the empty folder over which the file of this NUMBER, from 1, is mounted."""
        return self.folder / "places" / str(number)

    def list_binds(self, mounts: Iterable[SquashfsMount]) -> dict[str, str]:
        """Return {mount: FOLDER:TARGET}: what Enroot binds for each of MOUNTS."""
        return {
            one.mount: f"{self.place(number)}:{one.target}" for number, one in enumerate(mounts, 1)
        }

    def make_environment(self, mounts: Iterable[SquashfsMount]) -> dict[str, str]:
        """Return the variables for Enroot that make it open the files of MOUNTS."""
        files = [
            f"{one.file}:{one.name}:{self.place(number)}" for number, one in enumerate(mounts, 1)
        ]
        return {
            "ENROOT_CONFIG_PATH": str(self.folder),
            "HPCSTACK_ENROOT_CONFIG": str(self.own),
            "HPCSTACK_SQUASHFS": ",".join(files),
        }


def keep_hook(count: int) -> EnrootHook:
    """Return Enroot's settings that open COUNT squashfs files; write them where they are missing.

    They lie in the user's data folder, which nodes see, under a name that is a digest of the hook:
    a job may begin after hpcstack was upgraded. Everything else that the user has set for Enroot is
    linked there. Raise StoreError where they cannot be written.
    """
    own = find_config_home() / "enroot"
    # In a step of a launch, the second names this folder, and the first the user's own.
    for name in ("HPCSTACK_ENROOT_CONFIG", "ENROOT_CONFIG_PATH"):
        if os.environ.get(name):
            own = Path(os.environ[name])
            break
    texts = {name: data.read_script(script) for name, script in HOOKS.items()}
    digest = hashlib.sha256("\0".join([str(own), *texts.values()]).encode()).hexdigest()
    hook = EnrootHook(find_data_home() / "hpcstack" / "enroot" / digest[:16], own)
    try:
        hook.folder.mkdir(parents=True, exist_ok=True)
        for number in range(1, count + 1):
            hook.place(number).mkdir(parents=True, exist_ok=True)
        for name in KEPT:
            link = hook.folder / name
            if not link.is_symlink():
                with contextlib.suppress(FileExistsError):
                    link.symlink_to(own / name)
        for name, text in texts.items():
            script = hook.folder / "hooks.d" / name
            if not script.exists():
                write_text(script, text, 0o755)
    except OSError as error:
        raise StoreError(
            f"{hook.folder} cannot be written: {error.strerror or error}",
            "make room in your home directory, or export XDG_DATA_HOME=/scratch/you/share",
            page="where-caches-go",
        ) from None
    return hook
