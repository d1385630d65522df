"""What two images hold, side by side: every file by its bytes, but for what is left out, each with
its reason. Pure.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field

from hpcstack.recipe.guard import FAMILIES


@dataclass(frozen=True)
class Held:
    """One name in an image: `file`, `link` (with its target) or `dir`; a file's mode and sha256."""

    kind: str
    mode: int = 0
    value: str = ""


Contents = Mapping[str, Held]

# What parity leaves out, and why. The rest is compared, byte by byte.
LEFT_OUT: dict[str, str] = {
    "owners and groups of files": "each engine maps users in its own way; a container's files belong to who runs it",
    "times of files": "what is installed is written when it is installed",
    "extended attributes": "an image is unpacked or mounted without privilege, where they have no effect",
    "set-user-id bits": "runtimes mount images nosuid; some engines drop these bits",
    "modes of folders": "unprivileged engines must be able to write below a folder that they unpack",
    ".singularity.d/actions/*": "Apptainer writes its own into what it builds, and brings them to what it runs",
    ".singularity.d/env/0*": "Apptainer's own defaults",
    ".singularity.d/env/9[459]*": "Apptainer's own defaults; those of the other engines say the same in fewer words",
    ".singularity.d/env/90-environment.sh": "Apptainer adds a heading; its commands are compared as `environment`",
    ".singularity.d/runscript": "Apptainer writes its own; what is started is compared through /etc/rc",
    ".singularity.d/startscript": "Apptainer's own",
    ".singularity.d/Singularity": "the definition file, which only Apptainer keeps",
    ".singularity.d/labels.json": "Apptainer adds the date and itself",
    ".exec": "Apptainer's own link", ".run": "Apptainer's own link", ".shell": "Apptainer's own link",
    ".test": "Apptainer's own link",
    ".dockerenv": "Docker's own mark",
    "etc/hosts": "the runtime's", "etc/hostname": "the runtime's", "etc/resolv.conf": "the runtime's",
    "etc/mtab": "the runtime's",
    "dev/*": "the runtime's", "proc/*": "the runtime's", "sys/*": "the runtime's", "run/*": "the runtime's",
    "tmp/*": "scratch, which one engine shares with the machine and another keeps",
    "var/tmp/*": "scratch, which one engine shares with the machine and another keeps",
    "root/*": "the home of the build",
    "var/cache/*": "caches", "var/log/*": "logs",
}  # fmt: skip
PACKAGES = {
    "apt packages": "opt/hpcstack/packages/apt.txt",
    "pip packages": "opt/hpcstack/packages/pip.txt",
    "conda packages": "opt/hpcstack/packages/conda.txt",
}
ENVIRONMENT = (
    "etc/environment",
    ".singularity.d/env/10-docker2singularity.sh",
    ".singularity.d/env/90-environment.sh",
)


@dataclass
class Parity:
    """What was compared, how much of it, and where the two differ: `path: how`."""

    compared: dict[str, int] = field(default_factory=dict)
    differ: list[str] = field(default_factory=list)
    left_out: Mapping[str, str] = field(default_factory=lambda: LEFT_OUT)


def compare_contents(
    one: Contents, other: Contents, texts: tuple[Mapping[str, str], Mapping[str, str]]
) -> Parity:
    """Parity of two images. TEXTS are the contents of PACKAGES and ENVIRONMENT in each."""
    out = Parity()
    for what, path in PACKAGES.items():
        mine, theirs = (set(text.get(path, "").splitlines()) for text in texts)
        out.compared[what] = len(mine | theirs)
        out.differ += [f"{what}: {line} only in the first" for line in sorted(mine - theirs)]
        out.differ += [f"{what}: {line} only in the second" for line in sorted(theirs - mine)]
    mine_said, theirs_said = (
        [line for path in ENVIRONMENT for line in _commands(text, path)] for text in texts
    )
    out.compared["environment"] = len(mine_said)
    out.differ += [f"environment: {line}" for line in sorted(set(mine_said) ^ set(theirs_said))]
    names = {name for name in (*one, *other) if not left_out(name)}
    out.compared["key libraries"] = sum(key_library(name) for name in names)
    out.compared["files"] = sum(1 for name in names if (one.get(name) or other[name]).kind != "dir")
    for name in sorted(names):
        if how := _differs(one.get(name), other.get(name)):
            out.differ.append(f"{name}: {how}")
    return out


def find_differences(one: Contents, other: Contents) -> list[str]:
    """Every name at which two images differ in any way, for builds that should give the same bytes."""
    names = sorted({*one, *other})
    return [
        f"{name}: {how}"
        for name in names
        if (how := _differs(one.get(name), other.get(name), modes=True))
    ]


def left_out(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in LEFT_OUT)


def key_library(name: str) -> bool:
    """Whether NAME is one of the libraries that NVIDIA builds: those that the guard watches."""
    file = name.rpartition("/")[2]
    return any(
        fnmatch.fnmatchcase(file, glob) for _, _, globs in FAMILIES.values() for glob in globs
    )


def _commands(texts: Mapping[str, str], path: str) -> list[str]:
    lines = (line.strip() for line in texts.get(path, "").splitlines())
    return [f"{path}: {line}" for line in lines if line and not line.startswith("#")]


def _differs(one: Held | None, other: Held | None, *, modes: bool = False) -> str:
    if one is None or other is None:
        there = one or other
        assert there
        if there.kind == "dir" and not modes:
            return ""  # an empty folder: a mount point
        return f"only in the {'first' if one else 'second'}"
    if one.kind != other.kind:
        return f"{one.kind} and {other.kind}"
    if one.value != other.value:
        return f"points to {one.value} and {other.value}" if one.kind == "link" else "other bytes"
    mask = 0o7777 if modes else 0o777
    if (modes or one.kind == "file") and one.mode & mask != other.mode & mask:
        return f"mode {one.mode:o} and {other.mode:o}"
    return ""
