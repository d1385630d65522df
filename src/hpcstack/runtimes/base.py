"""What a runtime is: a step in, one argv and its environment out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path

from hpcstack.core import data
from hpcstack.core.characters import VARIABLE
from hpcstack.core.errors import InputError

VOID = {"NVIDIA_VISIBLE_DEVICES": "void"}


@dataclass(frozen=True)
class Part:
    """One or more words of a command line, and why they are there.

    `option` and `value` are the same in parts, where the words are one long option.
    """

    words: tuple[str, ...]
    why: str = ""
    option: str = ""
    value: str = ""


def make_option(name: str, value: object = None, why: str = "") -> Part:
    """Return the part of the option NAME, as `NAME=VALUE`, or alone where VALUE is None."""
    if value is None:
        return Part((name,), why, name)
    return Part((f"{name}={value}",), why, name, str(value))


@dataclass(frozen=True)
class Step:
    """One job step in an image.

    `slurm` are srun's own options, each with its reason; `mounts` are SOURCE:TARGET, and
    `mount_reasons` says of some why they are there; `home` says whether the home directory is to be
    in the container, `mounted_home` which one of MOUNTS it is, for runtimes that do not bring it by
    themselves; `environment` overrides the image's variables, which are `image_environment`; `gpus`
    says whether real GPUs are behind the nodes, `grace` whether the ranks are told by a signal
    before the time is up.
    """

    image: Path
    command: tuple[str, ...]
    slurm: tuple[Part, ...] = ()
    mounts: tuple[str, ...] = ()
    workdir: Path = Path("/")
    home: bool = True
    mounted_home: str = ""
    gpus: bool = False
    grace: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    image_environment: dict[str, str] = field(default_factory=dict)
    mount_reasons: dict[str, str] = field(default_factory=dict)


def make_shield() -> list[Part]:
    """What stands before a runtime that mounts the image by FUSE: a rank that is told to end still
    has its files.
    """
    why = "a signal for the ranks must not end what serves the image"
    return [Part(("/bin/sh", "-c", data.read_script("on-node/shield.sh"), "shield"), why)]


@dataclass(frozen=True)
class Runtime(ABC):
    """One way to start a job step in an image. All that differs between runtimes is here.

    `tool` is the program that nodes must have. `brings` are the host's folders that are in a
    container unasked: "home", "tmp".
    """

    name: str
    tool: str
    brings: tuple[str, ...] = ()
    uses_slurm: bool = True
    container_per_rank: bool = True  # ranks of a node are in containers of their own
    # The image's own environment looks at the node's driver (images/compat.sh).
    finds_driver: bool = False
    in_modules: bool = False  # modules/run.sh.j2 can start it
    in_scripts: bool = False  # launchers/to-copy/srun.sh.j2 can start it
    mounts_by_fuse: bool = False  # as an ordinary user, on the node
    needs_subuid: bool = False  # several user ids, from /etc/subuid

    @abstractmethod
    def parts(self, step: Step) -> list[Part]:
        """Return the whole line of STEP."""

    @abstractmethod
    def environment(self, step: Step) -> dict[str, str]:
        """Return what the line must be started with."""


def list_forced_variables(step: Step) -> dict[str, str]:
    """The variables that must win over the image's: void where there is no GPU, so that no hook
    looks for one.
    """
    return (VOID if not step.gpus else {}) | step.environment


def list_kept_variables(step: Step) -> dict[str, str]:
    """The image's variables that the step does not force, for runtimes that hand a container
    nothing of the task's environment, or all of it. The rule is Pyxis's: the image's own variables
    win over the host's, but for those that the step forces; all else of the task's environment,
    Slurm's and MPI's variables among it, is there.
    """
    found = sorted(step.image_environment.items())
    return {
        name: value
        for name, value in found
        if VARIABLE.fullmatch(name) and name not in list_forced_variables(step)
    }


def list_binds(step: Step) -> list[str]:
    """Each mount once, the working directory among them.

    InputError for a path that no runtime can mount.
    """
    if any(sign in str(step.workdir) for sign in ":,"):
        raise InputError(
            f"{step.workdir} cannot be mounted: its path contains ':' or ','",
            "start from another folder",
        )
    workdir = f"{step.workdir}:{step.workdir}"
    return list(dict.fromkeys((*step.mounts, *(() if str(step.workdir) == "/" else (workdir,)))))


SRUN = Part(("srun", "--export=ALL"), "one job step; it gets this shell's variables")


def explain_binds(step: Step) -> list[tuple[str, str]]:
    """(mount, why) of `list_binds`."""
    workdir = f"{step.workdir}:{step.workdir}"
    why = {workdir: "where it was started", **step.mount_reasons}
    return [(mount, why.get(mount, "the site's or the user's")) for mount in list_binds(step)]
