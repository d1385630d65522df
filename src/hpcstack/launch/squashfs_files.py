"""Tell which mounts of a step are squashfs files, whose contents the container is to see.

A data set of a million files is one file to the shared filesystem if it is packed
(`hpcstack pack`). A file of another kind is mounted only where its target is clearly a file, too.
"""

from __future__ import annotations

import hashlib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError
from hpcstack.runtimes.squashfs_mounts import SquashfsMount
from hpcstack.squashfs.read import SUFFIXES, is_squashfs

if TYPE_CHECKING:
    from collections.abc import Iterable

# What people pack data in: none of it can be mounted
ARCHIVES = (".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".zip", ".7z", ".h5", ".sif", ".iso")


def find_squashfs_mounts(mounts: Iterable[str]) -> tuple[SquashfsMount, ...]:
    """Return those of MOUNTS, SOURCE:TARGET, whose source is a squashfs file.

    A squashfs file that is mounted at a target with a suffix of squashfs files is wanted as a file.
    """
    out = []
    for mount in dict.fromkeys(mounts):
        source, _, target = mount.partition(":")
        if is_squashfs(Path(source)) and PurePosixPath(target).suffix not in SUFFIXES:
            out.append(SquashfsMount(Path(source), _name_contents(Path(source)), target))
    return tuple(out)


def _name_contents(path: Path) -> str:
    """Return a name for what the file PATH holds now: a digest of its path, size and time."""
    about = str(path)
    try:
        status = path.stat()
        about += f"\0{status.st_size}\0{status.st_mtime_ns}"
    except OSError:  # on the nodes alone
        pass
    return hashlib.sha256(about.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def check_file_mount(source: Path, target: str) -> None:
    """Raise InputError where SOURCE is a file, no squashfs file, and TARGET looks like a folder.

    Programs would find one file where they look for a folder of them. A target whose name is the
    source's, or ends in the same suffix, is clearly meant to be the file.
    """
    if not source.is_file() or is_squashfs(source):
        return
    place = PurePosixPath(target)
    if place.name == source.name or (source.suffix and place.suffix == source.suffix):
        return

    as_a_file = f"--mount {source}:{target.rstrip('/')}/{source.name} mounts the file itself"
    if source.suffix in SUFFIXES:
        problem = "its name is that of a squashfs file, but its contents are not"
        hint = f"hpcstack inspect {source}; was it copied whole?"
    elif source.suffix in ARCHIVES:
        problem = "an archive cannot be mounted as a folder"
        hint = f"unpack it, then: hpcstack pack FOLDER, --mount FOLDER.sqsh:{target}; {as_a_file}"
    else:
        problem = "it is a file, but not a squashfs file"
        hint = f"{as_a_file}; hpcstack pack FOLDER makes a squashfs file of a folder"
    raise InputError(f"--mount {source}:{target}: {problem}", hint, page="mount-a-packed-data-set")
