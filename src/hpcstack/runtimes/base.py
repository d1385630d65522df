"""The interface of a runtime: a step in, one argv and its environment out.

Tested in tests/unit/launch/test_plan.py.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core import data
from hpcstack.core.characters import VARIABLE
from hpcstack.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcstack.runtimes.slurm_inside import SlurmInside
    from hpcstack.runtimes.squashfs_mounts import EnrootHook, SquashfsMount

VOID = {"NVIDIA_VISIBLE_DEVICES": "void"}  # tells the hooks of NVIDIA's toolkit to do nothing


@dataclass(frozen=True)
class Part:
    """One or more words of a command line, and why they are there.

    Where the words are one long option, `option` is its name and `value` its value.
    """

    words: tuple[str, ...]
    why: str = ""
    option: str = ""
    value: str = ""


def make_option(name: str, value: object = None, why: str = "") -> Part:
    """Return the part for the option NAME, as `NAME=VALUE`, or `NAME` where VALUE is None."""
    if value is None:
        return Part((name,), why, name)
    return Part((f"{name}={value}",), why, name, str(value))


@dataclass(frozen=True)
class Step:
    """One job step in an image.

    `slurm` are srun's own options, each with its reason. `mounts` are SOURCE:TARGET;
    `mount_reasons` explains some of them. `home` says whether the container gets the home
    directory, and `mounted_home` is its path where it is one of the mounts, for runtimes that do
    not bring it by themselves. `squashfs` are those of the mounts whose source is a squashfs file;
    Enroot opens them by `hook`. `slurm_inside` brings Slurm's commands into the container.
    `environment` overrides the image's variables, which are `image_environment`. `gpus` says
    whether the nodes have real GPUs, and `grace` whether the ranks get a signal before the time
    limit. `stack` and `recipe`, the checksum of its recipe, are what the image says of itself.
    """

    image: Path
    command: tuple[str, ...]
    stack: str = ""
    recipe: str = ""
    slurm: tuple[Part, ...] = ()
    mounts: tuple[str, ...] = ()
    squashfs: tuple[SquashfsMount, ...] = ()
    hook: EnrootHook | None = None
    slurm_inside: SlurmInside | None = None
    workdir: Path = Path("/")
    home: bool = True
    mounted_home: str = ""
    gpus: bool = False
    grace: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    image_environment: dict[str, str] = field(default_factory=dict)
    mount_reasons: dict[str, str] = field(default_factory=dict)


# What ends the parts of a mount, for every runtime
SEPARATORS = re.compile("[:,\n]")
OF_A_SHELL = "$`\"'\\ \t"  # what Enroot's tables of mounts cannot have


def make_shield() -> list[Part]:
    """Return the words that stand before a runtime that mounts the image by FUSE.

    Slurm sends a signal to every process of a step. The shield keeps it from the program that
    serves the image, so that a rank that is told to end can still read its files
    (on-node/shield.sh).
    """
    why = "a signal for the ranks must not end what serves the image"
    return [Part(("/bin/sh", "-c", data.read_script("on-node/shield.sh"), "shield"), why)]


def start_helper(step: Step) -> list[Part]:
    """Return the words that stand before all others of a container that may reach Slurm.

    They start the helper that runs Slurm's commands (on-node/slurm.sh).
    """
    if step.slurm_inside is None:
        return []
    why = "starts what runs Slurm's commands for the programs in the image"
    return [Part(step.slurm_inside.list_words(), why)]


@dataclass(frozen=True)
class Runtime(ABC):
    """One way to start a job step in an image, with all that differs between runtimes.

    `tool` is the program that nodes must have. `brings` names the host's folders that a container
    gets unasked: "home", "tmp".
    """

    name: str
    tool: str
    brings: tuple[str, ...] = ()
    uses_slurm: bool = True
    is_plugin_of_srun: bool = False  # srun itself starts the container
    container_per_rank: bool = True  # each rank of a node has a container of its own
    # The image's own environment runs images/compat.sh, which looks at the node's driver.
    finds_driver: bool = False
    in_modules: bool = False  # modules/run.sh.j2 can start it
    in_scripts: bool = False  # launchers/to-copy/srun.sh.j2 can start it
    mounts_by_fuse: bool = False  # the node mounts the image as an ordinary user
    needs_subuid: bool = False  # the user needs several user ids, from /etc/subuid
    uses_hooks: bool = False  # Enroot's hooks run as the container starts
    # What stands before the name of a variable of the host that it sets in containers
    variable_prefix: str = ""
    # Why it sets variables of its own, {variable: why}
    reasons: Mapping[str, str] = field(default_factory=dict)
    # Signs in the path of a mount that it would take for something else, besides SEPARATORS
    refused_signs: str = ""

    def check_mounts(self, step: Step) -> None:
        """Raise InputError where a path that STEP mounts has a sign that this runtime cannot be told."""
        paths = [str(step.workdir)]
        if SEPARATORS.search(paths[0]):
            raise InputError(
                f"{step.workdir} cannot be mounted: its path has a ':', a ',' or a new line",
                "start from another folder",
            )
        for mount in step.mounts:
            paths += mount.split(":", 1)
        for path in paths:
            if any(sign in path for sign in self.refused_signs):
                raise InputError(
                    f"{path} cannot be mounted by {self.name}: it takes quotes, blanks, $ and "
                    "backslashes in a path for something else",
                    "use a folder without them; or --runtime apptainer, which can mount it",
                )

    @abstractmethod
    def parts(self, step: Step) -> list[Part]:
        """Return the whole command line of STEP, in parts."""

    @abstractmethod
    def environment(self, step: Step) -> dict[str, str]:
        """Return the variables that must be set where the command line of STEP is started."""

    def find_second_start(self, argv: Sequence[str]) -> list[str]:  # noqa: ARG002
        """Return those of ARGV, a step's command line, that start another container as the step's.

        None where no second one can be started beside it.
        """
        return []


def list_forced_variables(step: Step) -> dict[str, str]:
    """Return the variables that must win over the image's.

    Without GPUs, NVIDIA_VISIBLE_DEVICES=void is among them, so that no hook looks for one.
    """
    if step.gpus:
        return dict(step.environment)
    return VOID | step.environment


def list_kept_variables(step: Step) -> dict[str, str]:
    """Return the image's variables that STEP does not force, sorted by name.

    Pyxis's rule: the image's own variables win over the host's, except for those that the step
    forces; all else of the task's environment, such as Slurm's and MPI's variables, reaches the
    container. Runtimes that hand a container nothing of that environment, or all of it, need these
    variables to follow it.
    """
    forced = list_forced_variables(step)
    return {
        name: value
        for name, value in sorted(step.image_environment.items())
        if VARIABLE.fullmatch(name) and name not in forced
    }


def list_binds(step: Step) -> list[str]:
    """Return each mount of STEP once, and the working directory unless that is /."""
    mounts = list(step.mounts)
    if str(step.workdir) != "/":
        mounts.append(f"{step.workdir}:{step.workdir}")
    return list(dict.fromkeys(mounts))


SRUN = Part(("srun", "--export=ALL"), "one job step; it gets this shell's variables")


def explain_binds(step: Step, instead: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
    """Return (mount, why) for each mount of `list_binds`.

    INSTEAD has what the runtime is given in the place of some of them, {mount: text}.
    """
    instead = instead or {}
    workdir = f"{step.workdir}:{step.workdir}"
    why = {workdir: "where it was started", **step.mount_reasons}
    return [
        (instead.get(mount, mount), why.get(mount, "the site's or the user's"))
        for mount in list_binds(step)
    ]


def list_hook_binds(step: Step) -> dict[str, str]:
    """Return {mount: what Enroot binds for it} for the squashfs files of STEP."""
    return step.hook.list_binds(step.squashfs) if step.hook else {}


def list_hook_variables(step: Step) -> dict[str, str]:
    """Return the variables for Enroot's hooks: they open the squashfs files of STEP."""
    return step.hook.make_environment(step.squashfs) if step.hook else {}
