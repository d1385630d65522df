"""Compare the contents of two images, every file by its bytes.

What is not compared is in one table, each row with its reason.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field

from hpcstack.recipe.guard import FAMILIES


@dataclass(frozen=True)
class Held:
    """One name in an image."""

    kind: str  # `file`, `link` or `dir`
    mode: int = 0
    value: str = ""  # a file's sha256, a link's target


Contents = Mapping[str, Held]

# What parity leaves out, and why: properties of files first, then patterns of names. Everything
# else is compared byte by byte.
LEFT_OUT: dict[str, str] = {
    "owners and groups of files": (
        "each engine maps users in its own way; a container's files belong to whoever runs it"
    ),
    "times of files": "a file has the time at which it was installed",
    "extended attributes": (
        "an image is unpacked or mounted without privilege, where they have no effect"
    ),
    "set-user-id bits": "runtimes mount images nosuid; some engines drop these bits",
    "modes of folders": (
        "unprivileged engines must be able to write below a folder that they unpack"
    ),
    ".singularity.d/actions/*": (
        "Apptainer writes its own into what it builds, and brings them to what it runs"
    ),
    ".singularity.d/env/0*": "Apptainer's own defaults",
    ".singularity.d/env/9[459]*": (
        "Apptainer's own defaults; those of the other engines say the same in fewer words"
    ),
    ".singularity.d/env/90-environment.sh": (
        "Apptainer adds a heading; its commands are compared as `environment`"
    ),
    ".singularity.d/runscript": (
        "Apptainer writes its own; what is started is compared through /etc/rc"
    ),
    ".singularity.d/startscript": "Apptainer's own",
    ".singularity.d/Singularity": "the definition file, which only Apptainer keeps",
    ".singularity.d/labels.json": "Apptainer adds the date and itself",
    ".exec": "Apptainer's own link",
    ".run": "Apptainer's own link",
    ".shell": "Apptainer's own link",
    ".test": "Apptainer's own link",
    ".dockerenv": "Docker's own mark",
    "etc/hosts": "the runtime's",
    "etc/hostname": "the runtime's",
    "etc/resolv.conf": "the runtime's",
    "etc/mtab": "the runtime's",
    "dev/*": "the runtime's",
    "proc/*": "the runtime's",
    "sys/*": "the runtime's",
    "run/*": "the runtime's",
    "tmp/*": "scratch, which one engine shares with the machine and another keeps",
    "var/tmp/*": "scratch, which one engine shares with the machine and another keeps",
    "root/*": "the home of the build",
    "var/cache/*": "caches",
    "var/log/*": "logs",
}
PACKAGES = {
    "apt packages": "opt/hpcstack/packages/apt.txt",
    "pip packages": "opt/hpcstack/packages/pip.txt",
    "conda packages": "opt/hpcstack/packages/conda.txt",
    "rpm packages": "opt/hpcstack/packages/rpm.txt",
}
ENVIRONMENT = (
    "etc/environment",
    ".singularity.d/env/10-docker2singularity.sh",
    ".singularity.d/env/90-environment.sh",
)


@dataclass
class Parity:
    """The result of a comparison."""

    compared: dict[str, int] = field(default_factory=dict)  # {what: how many of them}
    differ: list[str] = field(default_factory=list)  # `path: how they differ`
    left_out: Mapping[str, str] = field(default_factory=lambda: LEFT_OUT)  # {what: why}


def compare_contents(
    one: Contents, other: Contents, texts: tuple[Mapping[str, str], Mapping[str, str]]
) -> Parity:
    """Compare two images that different engines have built of the same stack.

    TEXTS are the contents of PACKAGES and ENVIRONMENT in each: {path: text}.
    """
    out = Parity()
    for what, path in PACKAGES.items():
        mine, theirs = (set(text.get(path, "").splitlines()) for text in texts)
        out.compared[what] = len(mine | theirs)
        out.differ += [f"{what}: {line} only in the first" for line in sorted(mine - theirs)]
        out.differ += [f"{what}: {line} only in the second" for line in sorted(theirs - mine)]

    my_commands, their_commands = (
        [line for path in ENVIRONMENT for line in _commands(text, path)] for text in texts
    )
    out.compared["environment"] = len(my_commands)
    unequal = sorted(set(my_commands) ^ set(their_commands))
    out.differ += [f"environment: {line}" for line in unequal]

    names = {name for name in (*one, *other) if not left_out(name)}
    out.compared["key libraries"] = sum(is_key_library(name) for name in names)
    out.compared["files"] = sum(1 for name in names if (one.get(name) or other[name]).kind != "dir")
    for name in sorted(names):
        how = _describe_difference(one.get(name), other.get(name))
        if how:
            out.differ.append(f"{name}: {how}")
    return out


def find_differences(one: Contents, other: Contents) -> list[str]:
    """Return every name at which two images differ, for builds that should give the same bytes."""
    out = []
    for name in sorted({*one, *other}):
        how = _describe_difference(one.get(name), other.get(name), modes=True)
        if how:
            out.append(f"{name}: {how}")
    return out


def left_out(name: str) -> bool:
    """Return whether the file NAME is not compared."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in LEFT_OUT)


def is_key_library(name: str) -> bool:
    """Return whether NAME is a library that NVIDIA builds, one of those that the guard watches."""
    file = name.rpartition("/")[2]
    globs = [glob for _, _, globs_of in FAMILIES.values() for glob in globs_of]
    return any(fnmatch.fnmatchcase(file, glob) for glob in globs)


def _commands(texts: Mapping[str, str], path: str) -> list[str]:
    """Return the lines of the file PATH, without blank lines and comments."""
    lines = (line.strip() for line in texts.get(path, "").splitlines())
    return [f"{path}: {line}" for line in lines if line and not line.startswith("#")]


def _describe_difference(one: Held | None, other: Held | None, *, modes: bool = False) -> str:
    """Return how ONE and OTHER differ; empty if they do not.

    With MODES, the modes of folders and set-user-id bits count as well, and so do folders that only
    one of the images has.
    """
    if one is None or other is None:
        there = one or other
        assert there
        if there.kind == "dir" and not modes:
            return ""  # an empty folder, such as a mount point: the files of another are compared
        return f"only in the {'first' if one else 'second'}"

    if one.kind != other.kind:
        return f"{one.kind} and {other.kind}"
    if one.value != other.value:
        if one.kind == "link":
            return f"points to {one.value} and {other.value}"
        return "other bytes"
    mask = 0o7777 if modes else 0o777
    if (modes or one.kind == "file") and one.mode & mask != other.mode & mask:
        return f"mode {one.mode:o} and {other.mode:o}"
    return ""
