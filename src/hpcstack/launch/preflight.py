"""Whether a command is in an image, read out of the squashfs, before anybody allocates nodes for it."""

from __future__ import annotations

import os
import posixpath
from pathlib import Path, PurePosixPath

from hpcstack.core.process import Runner
from hpcstack.store.artifact import Artifact

LINKS = 8
INTERPRETERS, SCRIPTS = ("python", "python3", "bash", "sh"), (".py", ".sh")
SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def missing(
    artifact: Artifact, command: tuple[str, ...], workdir: Path, mounts: tuple[str, ...], runner: Runner, *,
    look: bool = True,
) -> str:  # fmt: skip
    """Why COMMAND cannot start in the image, or nothing. What lies in a mount or the folder is looked at there, the
    rest in the image, if LOOK."""
    word = command[0]
    runs = word not in INTERPRETERS or not command[1:]
    if word in INTERPRETERS and command[1:] and command[1].endswith(SCRIPTS):
        command, word = command[1:], command[1] if "/" in command[1] else f"./{command[1]}"
    if word == "-m":
        return ""
    if word.endswith(".py") and "/" not in word:
        word = f"./{word}"
    if "/" in word:
        path = posixpath.normpath(word if word.startswith("/") else str(workdir / word))
        mounted = [mount.partition(":")[::2] for mount in (*mounts, f"{workdir}:{workdir}")]
        for source, target in mounted:
            if PurePosixPath(path).is_relative_to(target):
                real = Path(source) / PurePosixPath(path).relative_to(target)
                seen = [Path(one) for one, _ in mounted]
                return _cannot_run(real, path, seen, runs=runs and not path.endswith(".py"))
        return "" if not look or there([path], artifact, runner) else f"{path} is neither in the image nor in a mount"
    places = (artifact.environment.get("PATH") or SYSTEM).split(":")
    if not look or there([f"{place}/{word}" for place in places if place], artifact, runner):
        return ""
    return f"the image has no command {word!r} on its PATH ({':'.join(places)})"


def _cannot_run(real: Path, path: str, mounted: list[Path], *, runs: bool) -> str:
    """Why REAL, which is PATH in the container, cannot be read there, or run; nothing where it can."""
    shown = path if str(real) == path else f"{path} ({real})"
    if not real.exists():
        return f"{shown}: no such file"
    behind = real.resolve()
    if not any(behind.is_relative_to(place) or behind.is_relative_to(place.resolve()) for place in mounted):
        return f"{shown} leads to {behind}, which is not mounted"
    if not real.is_file():
        return f"{shown} is not a file"
    if runs and not os.access(real, os.X_OK):
        return f"{shown} is not executable (chmod +x)" + (
            ", and is a job script: sbatch it" if _of_sbatch(real) else ""
        )
    return ""


def _of_sbatch(path: Path) -> bool:
    with path.open("rb") as file:
        return b"\n#SBATCH" in file.read(4096)


def there(paths: list[str], artifact: Artifact, runner: Runner) -> bool:
    """Whether one of PATHS is in the image, links among its folders followed (/bin -> /usr/bin, cuda -> cuda-12)."""
    asked = {path.strip("/") for path in paths}
    done = runner.output(["unsquashfs", "-l", "-d", "", str(artifact.image), *sorted(asked)], timeout=60)
    if any(line.strip("/") in asked for line in done.stdout.splitlines()):
        return True
    return any(_exists(path, artifact, runner) for path in sorted(asked))


def _exists(path: str, artifact: Artifact, runner: Runner) -> bool:
    """Whether PATH is there, one part after the other."""
    for _ in range(LINKS):
        for folder in [*reversed(PurePosixPath(path).parents), PurePosixPath(path)][1:]:
            kind, target = _entry(str(folder), artifact, runner)
            if not kind:
                return False
            if kind == "l" and str(folder) != path:
                path = _through(folder, target, PurePosixPath(path))
                break
        else:
            return True
    return False


def _entry(path: str, artifact: Artifact, runner: Runner) -> tuple[str, str]:
    """(what PATH is, as ls writes it; where it leads, if it is a link); two empty texts where there is nothing."""
    depth = str(path.count("/") + 1)
    done = runner.output(["unsquashfs", "-ll", "-d", "", "-max-depth", depth, str(artifact.image), path], timeout=60)
    for line in done.stdout.splitlines():
        found, _, target = " ".join(line.split()[5:]).partition(" -> ")
        if found == f"/{path}":
            return line[0], target
    return "", ""


def _through(link: PurePosixPath, target: str, path: PurePosixPath) -> str:
    """PATH, which lies below LINK, as a path below the link's target."""
    rest = path.relative_to(link)
    whole = f"{target}/{rest}" if target.startswith("/") else f"/{link.parent}/{target}/{rest}"
    return posixpath.normpath(whole).strip("/")
