"""Whether a command is in an image, read out of the squashfs, before anybody allocates nodes for
it.
"""

from __future__ import annotations

import os
import posixpath
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from hpcstack.core.errors import StoreError
from hpcstack.squashfs.codec import Unreadable
from hpcstack.squashfs.lookup import find_inode
from hpcstack.squashfs.read import Squashfs

if TYPE_CHECKING:
    from hpcstack.store.artifact import Artifact

INTERPRETERS, SCRIPTS = ("python", "python3", "bash", "sh"), (".py", ".sh")
SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def explain_missing_command(
    artifact: Artifact,
    command: tuple[str, ...],
    workdir: Path,
    mounts: tuple[str, ...],
    *,
    look: bool = True,
) -> str:
    """Why COMMAND cannot start in the image, or nothing. What lies in a mount or the folder is
    looked at there, the rest in the image, if LOOK.
    """
    word = command[0]
    runs = word not in INTERPRETERS or not command[1:]
    if word in INTERPRETERS and command[1:] and command[1].endswith(SCRIPTS):
        command, word = command[1:], command[1] if "/" in command[1] else f"./{command[1]}"
    if word == "-m":
        return ""
    lone = word.endswith(".py") and "/" not in word
    if lone or "/" in word:
        path = posixpath.normpath(word if word.startswith("/") else str(workdir / word))
        mounted = [mount.partition(":")[::2] for mount in (*mounts, f"{workdir}:{workdir}")]
        for source, target in sorted(
            mounted, key=lambda pair: -len(pair[1])
        ):  # the innermost is the one that is seen
            if PurePosixPath(path).is_relative_to(target):
                real = Path(source) / PurePosixPath(path).relative_to(target)
                seen = [Path(one) for one, _ in mounted]
                executed = runs and not path.endswith(".py")
                said = _cannot_run(real, path, seen, artifact, runs=executed, look=look)
                # a program's name may end in .py, too
                return "" if said and lone and look and _on_path(word, artifact) else said
        return (
            ""
            if not look or is_there([path], artifact.image)
            else f"{path} is neither in the image nor in a mount"
        )
    places = _places(artifact)
    if not look or _on_path(word, artifact):
        return ""
    return f"the image has no command {word!r} on its PATH ({':'.join(places)})"


def note_own_torch(artifact: Artifact, command: tuple[str, ...], workdir: Path) -> str:
    """What to know of a COMMAND whose Python is a virtual environment's with a torch of its own;
    empty for all others.

    NVIDIA's images name the folder of their torch's libraries in LD_LIBRARY_PATH, which the loader
    searches before those that another torch names itself: that torch then runs on NVIDIA's
    libraries, of another version.
    """
    searched = artifact.environment.get("LD_LIBRARY_PATH", "").split(":")
    first = next((one for one in searched if one.rstrip("/").endswith("/torch/lib")), "")
    program = workdir / command[0]
    if not first or "/" not in command[0]:
        return ""
    home = program.parent.parent
    try:
        own = (home / "pyvenv.cfg").is_file() and next(
            home.glob("lib/python3*/site-packages/torch/lib"), None
        )
    except OSError:  # a folder that this user may not enter here
        return ""
    if not own:
        return ""
    rest = ":".join(one for one in searched if one != first)
    return (
        f"{home} has a torch of its own, and the image's LD_LIBRARY_PATH has NVIDIA's first "
        f"({first}): it would load "
        f"that one's libraries; -- env LD_LIBRARY_PATH={rest} {command[0]} ..."
    )


def _places(artifact: Artifact) -> list[str]:
    return (artifact.environment.get("PATH") or SYSTEM).split(":")


def _on_path(word: str, artifact: Artifact) -> bool:
    return is_there([f"{place}/{word}" for place in _places(artifact) if place], artifact.image)


def _cannot_run(
    real: Path, path: str, mounted: list[Path], artifact: Artifact, *, runs: bool, look: bool
) -> str:
    """Why REAL, which is PATH in the container, cannot be read there, or run; nothing where it can,
    or nobody knows.
    """
    shown = path if str(real) == path else f"{path} ({real})"
    try:
        if not next(one for one in mounted if real.is_relative_to(one)).exists():
            return ""  # a folder that only the nodes have
        behind = real.resolve()
        inside = any(
            behind.is_relative_to(place) or behind.is_relative_to(place.resolve())
            for place in mounted
        )
        if (
            real.is_symlink() and not inside
        ):  # such as the python of a virtual environment that was made in the image
            in_image = not look or is_there([str(behind)], artifact.image)
            return (
                ""
                if in_image
                else f"{shown} leads to {behind}, which is neither mounted nor in the image"
            )
        if not real.exists():
            return f"{shown}: no such file"
        if not inside:
            return f"{shown} leads to {behind}, which is not mounted"
        if not real.is_file():
            return f"{shown} is not a file"
        if runs and not os.access(real, os.X_OK):
            return f"{shown} is not executable (chmod +x)" + (
                ", and is a job script: sbatch it" if _of_sbatch(real) else ""
            )
    except OSError:  # a folder that this user may not enter here
        return ""
    return ""


def _of_sbatch(path: Path) -> bool:
    with path.open("rb") as file:
        return b"\n#SBATCH" in file.read(4096)


def is_there(paths: list[str], image: Path) -> bool:
    """Whether one of PATHS is in IMAGE, links among its folders followed (/bin -> /usr/bin, cuda ->
    cuda-12).

    True where nobody may say, since this user cannot read the image here. StoreError where it is
    damaged.
    """
    try:
        with Squashfs(image) as opened:
            return any(find_inode(opened, path, follow=False) for path in paths)
    except Unreadable as error:
        raise StoreError(
            f"{image} cannot be read: {error}", "hpcstack verify says whether it is what was built"
        ) from None
    except OSError:
        return True
