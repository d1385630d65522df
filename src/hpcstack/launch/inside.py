"""Whether a command is in an image, read out of the squashfs, before anybody allocates nodes for it."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from hpcstack.process import Runner
from hpcstack.store import Artifact

SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def missing(
    artifact: Artifact, command: tuple[str, ...], workdir: Path, mounts: tuple[str, ...], runner: Runner
) -> str:
    """Why COMMAND cannot start in the image, or nothing. What lies in a mount or the folder is looked at there."""
    word = command[0]
    if word == "-m" or (word.endswith(".py") and "/" not in word):
        script = workdir / word
        return "" if word == "-m" or script.is_file() else f"{script}: no such file"
    if "/" in word:
        path = word if word.startswith("/") else str(workdir / word)
        targets = [*(mount.partition(":")[2] for mount in mounts), str(workdir)]
        if any(PurePosixPath(path).is_relative_to(target) for target in targets):
            return "" if Path(path).exists() else f"{path}: no such file"
        return "" if there([path], artifact, runner) else f"{path} is neither in the image nor in a mount"
    places = (artifact.environment.get("PATH") or SYSTEM).split(":")
    if there([f"{place}/{word}" for place in places if place], artifact, runner):
        return ""
    return f"the image has no command {word!r} on its PATH ({':'.join(places)})"


def there(paths: list[str], artifact: Artifact, runner: Runner) -> bool:
    """Whether one of PATHS is in the image; /bin may be a link to /usr/bin."""
    asked = {path.lstrip("/") for path in paths}
    asked |= {f"usr/{path}" for path in asked if re.match(r"(bin|sbin|lib|lib64)/", path)}
    done = runner.output(["unsquashfs", "-l", "-d", "", str(artifact.image), *sorted(asked)], timeout=60)
    return any(line.lstrip("/") in asked for line in done.stdout.splitlines())
