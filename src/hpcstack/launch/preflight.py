"""Look for a command in an image's squashfs, before nodes are allocated for it."""

from __future__ import annotations

import os
import posixpath
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from hpcstack.core.errors import StoreError
from hpcstack.squashfs.codec import Unreadable
from hpcstack.squashfs.lookup import find_inode
from hpcstack.squashfs.read import Squashfs, is_squashfs

if TYPE_CHECKING:
    from hpcstack.store.artifact import Artifact

INTERPRETERS, SCRIPTS = ("python", "python3", "bash", "sh"), (".py", ".sh")
# The PATH of an image that sets none
SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def explain_missing_command(
    artifact: Artifact,
    command: tuple[str, ...],
    workdir: Path,
    mounts: tuple[str, ...],
    *,
    look: bool = True,
) -> str:
    """Return why COMMAND cannot start in the image; empty where it can, or nobody knows.

    A path in a mount or in WORKDIR is looked up there. Everything else is looked up in the image,
    unless LOOK is False. Where an interpreter runs a script, the script is looked up.
    """
    word = command[0]
    is_interpreter = word in INTERPRETERS and bool(command[1:])
    if is_interpreter and command[1].endswith(SCRIPTS):
        word = command[1] if "/" in command[1] else f"./{command[1]}"
    if word == "-m":
        return ""  # a module of Python's: only Python knows where it is

    is_bare_script = word.endswith(".py") and "/" not in word
    if is_bare_script or "/" in word:
        path = posixpath.normpath(str(workdir / word))
        mounted = [mount.partition(":")[::2] for mount in (*mounts, f"{workdir}:{workdir}")]
        # Of mounts inside each other, the container sees the innermost.
        for source, target in sorted(mounted, key=lambda pair: -len(pair[1])):
            if not PurePosixPath(path).is_relative_to(target):
                continue
            below = PurePosixPath(path).relative_to(target)
            if below.parts and is_squashfs(Path(source)):
                is_in_it = is_there([f"/{below}"], Path(source))
                return "" if is_in_it else f"{path} is not in {source}"
            real = Path(source) / below
            sources = [Path(one) for one, _ in mounted]
            executed = not is_interpreter and not path.endswith(".py")
            said = _explain_unusable(real, path, sources, artifact, runs=executed, look=look)
            # The name of a program on the image's PATH may end in .py, too.
            if said and is_bare_script and look and _is_on_path(word, artifact):
                return ""
            return said
        if not look or is_there([path], artifact.image):
            return ""
        return f"{path} is neither in the image nor in a mount"

    if not look or _is_on_path(word, artifact):
        return ""
    places = _list_path(artifact)
    return f"the image has no command {word!r} on its PATH ({':'.join(places)})"


def note_own_torch(artifact: Artifact, command: tuple[str, ...], workdir: Path) -> str:
    """Return a warning about a COMMAND of a virtual environment that has a torch of its own.

    NVIDIA's images name the folder of their torch's libraries in LD_LIBRARY_PATH, which the loader
    searches before the folders that another torch names itself. That torch would run on NVIDIA's
    libraries, of another version. Empty for every other command.
    """
    searched = artifact.environment.get("LD_LIBRARY_PATH", "").split(":")
    nvidias = next((one for one in searched if one.rstrip("/").endswith("/torch/lib")), "")
    if not nvidias or "/" not in command[0]:
        return ""

    venv = (workdir / command[0]).parent.parent
    try:
        is_venv = (venv / "pyvenv.cfg").is_file()
        has_torch = is_venv and any(venv.glob("lib/python3*/site-packages/torch/lib"))
    except OSError:  # a folder that this user may not enter here
        return ""
    if not has_torch:
        return ""
    rest = ":".join(one for one in searched if one != nvidias)
    return (
        f"{venv} has a torch of its own, and the image's LD_LIBRARY_PATH has NVIDIA's first "
        f"({nvidias}): it would load that one's libraries; -- env LD_LIBRARY_PATH={rest} "
        f"{command[0]} ..."
    )


def _list_path(artifact: Artifact) -> list[str]:
    """Return the folders of the PATH in the image of ARTIFACT."""
    return (artifact.environment.get("PATH") or SYSTEM).split(":")


def _is_on_path(word: str, artifact: Artifact) -> bool:
    """Whether the image of ARTIFACT has a program WORD on its PATH."""
    places = [place for place in _list_path(artifact) if place]
    return is_there([f"{place}/{word}" for place in places], artifact.image)


def _explain_unusable(
    real: Path, path: str, mounted: list[Path], artifact: Artifact, *, runs: bool, look: bool
) -> str:
    """Return why the file REAL, which is PATH in the container, cannot be read there.

    With RUNS it must be executable as well. MOUNTED are the sources of all mounts. Empty where the
    file can be used, or this machine cannot tell.
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
        # A link may lead into the image: the python of a virtual environment that was made there.
        if real.is_symlink() and not inside:
            in_image = not look or is_there([str(behind)], artifact.image)
            said = f"{shown} leads to {behind}, which is neither mounted nor in the image"
            return "" if in_image else said

        if not real.exists():
            return f"{shown}: no such file"
        if not inside:
            return f"{shown} leads to {behind}, which is not mounted"
        if not real.is_file():
            return f"{shown} is not a file"
        if runs and not os.access(real, os.X_OK):
            said = f"{shown} is not executable (chmod +x)"
            if _is_job_script(real):
                said += ", and is a job script: sbatch it"
            return said
    except OSError:  # a folder that this user may not enter here
        return ""
    return ""


def _is_job_script(path: Path) -> bool:
    """Whether the beginning of PATH has a directive for sbatch."""
    with path.open("rb") as file:
        return b"\n#SBATCH" in file.read(4096)


def is_there(paths: list[str], image: Path) -> bool:
    """Whether one of PATHS is in IMAGE.

    Links among the folders are followed (/bin -> /usr/bin, cuda -> cuda-12). True where this user
    cannot read the image here, so that nobody can say. Raise StoreError where it is damaged.
    """
    try:
        with Squashfs(image) as opened:
            return any(find_inode(opened, path, follow=False) for path in paths)
    except Unreadable as error:
        raise StoreError(
            f"{image} cannot be read: {error}",
            "hpcstack verify says whether it is what was built",
            page="repair-what-is-published",
        ) from None
    except OSError:
        return True
