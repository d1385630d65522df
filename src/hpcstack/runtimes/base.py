"""What a runtime is: a step in, one argv and its environment out."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hpcstack.core.errors import InputError

VOID = {"NVIDIA_VISIBLE_DEVICES": "void"}


@dataclass(frozen=True)
class Part:
    """One or more words of a command line, and why they are there."""

    words: tuple[str, ...]
    why: str = ""


@dataclass(frozen=True)
class Step:
    """One job step in an image.

    `slurm` are srun's own options, each with its reason; `mounts` are SOURCE:TARGET; `environment` overrides the
    image's variables, which are `image_environment`; `gpus` says whether real GPUs are behind the nodes, `grace`
    whether the ranks are told by a signal before the time is up.
    """

    image: Path
    command: tuple[str, ...]
    slurm: tuple[Part, ...] = ()
    mounts: tuple[str, ...] = ()
    workdir: Path = Path("/")
    gpus: bool = False
    grace: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    image_environment: dict[str, str] = field(default_factory=dict)


# Slurm gives a signal to every process of a step. What serves the image by FUSE would die of it, and take the image
# away from the ranks that are to write a checkpoint. Ignoring or blocking it further up does not reach that program
# (Go's runtime undoes both for its children), so it is started by one of ours that ignores it, first on PATH.
SHIELD = """\
own=${TMPDIR:-/tmp}/hpcstack-shield-$(id -u)
mkdir -m 700 "$own" 2>/dev/null
if [ -O "$own" ] && [ ! -L "$own" ]; then
    for tool in squashfuse_ll squashfuse fuse-overlayfs; do
        real=$(command -v "$tool") || continue
        case $real in "$own"/*) continue ;; esac
        printf '#!/bin/sh\\ntrap "" TERM USR1 USR2\\nexec "%s" "$@"\\n' "$real" >"$own/.$tool.$$"
        chmod 755 "$own/.$tool.$$" && mv "$own/.$tool.$$" "$own/$tool"
    done
    PATH=$own:$PATH
fi
exec "$@"
"""


def shield(step: Step) -> list[Part]:
    """What stands before a runtime that mounts the image by FUSE, where ranks get signals."""
    why = "a signal for the ranks must not end what serves the image"
    return [Part(("/bin/sh", "-c", SHIELD, "shield"), why)] if step.grace else []


class Runtime(Protocol):
    """`parts` are the whole line; `environment` what it must be started with."""

    @property
    def name(self) -> str: ...

    def parts(self, step: Step) -> list[Part]: ...

    def environment(self, step: Step) -> dict[str, str]: ...


def forced(step: Step) -> dict[str, str]:
    """The variables that must win over the image's: void where there is no GPU, so that no hook looks for one."""
    return (VOID if not step.gpus else {}) | step.environment


def binds(step: Step) -> list[str]:
    """Each mount once, the working directory among them. InputError for a path that no runtime can mount."""
    if any(sign in str(step.workdir) for sign in ":,"):
        raise InputError(f"{step.workdir} cannot be mounted: its path holds ':' or ','", "start from another folder")
    workdir = f"{step.workdir}:{step.workdir}"
    return list(dict.fromkeys((*step.mounts, *(() if str(step.workdir) == "/" else (workdir,)))))


SRUN = Part(("srun", "--export=ALL"), "one job step; it gets this shell's variables")


def mounted(step: Step) -> list[tuple[str, str]]:
    """(mount, why) of `binds`."""
    workdir = f"{step.workdir}:{step.workdir}"
    why = {workdir: "where it was started"}
    return [(mount, why.get(mount, "the site's or the user's")) for mount in binds(step)]
