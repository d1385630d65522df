"""The request for a launch, and the checks that it passes as it is read."""

from __future__ import annotations

import os
import re
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError, did_you_mean
from hpcstack.launch.resources import Resources
from hpcstack.launch.squashfs_files import check_file_mount
from hpcstack.slurm.client import Client
from hpcstack.slurm.options import OPTIONS, Scope, find_scope, list_known_options
from hpcstack.slurm.query import parse_minutes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcstack.core.process import Runner

NO_RESOURCES = Resources()

# Options of sbatch that a launch has no use for
OF_HPCSTACK = {"--wrap": "hpcstack writes the job's script itself"}
MOUNT = re.compile(r"/[^:,\n]*:/[^:,\n]*")
OF_THE_IMAGE = "/opt/hpcstack/"


@dataclass(frozen=True)
class Served:
    """What a launch runs by launchers/in-image/serve_page.py: a page of launch/page.py, or a
    `kernel`.

    `folder` is in the container. JOB in it stands for the job's number. It ends in what nobody can
    guess: another user of the node who knew the name could take it first. It is short, since sockets
    lie in it.
    """

    kind: str
    folder: str = field(default_factory=lambda: f"/tmp/hpcstack-page-JOB-{uuid.uuid4().hex[:12]}")


@dataclass(frozen=True)
class LaunchRequest:
    """A command to run in an image, with the options of `hpcstack launch` under their own names.

    `name` is a stack, a module or a recipe; it is empty where a loaded module names the image. An
    empty `mode` means the recipe's mode. A `workdir` of None means the current folder, a `home` of
    None the site's `mount_home`, and a `slurm` of None what the recipe or the site says. With
    `only_shown`, what exceeds Slurm's limits is reported and not refused: a script may be written
    for a partition that does not exist yet.
    """

    command: tuple[str, ...]
    resources: Resources = NO_RESOURCES
    name: str = ""
    mode: str = ""
    runtime: str = "auto"
    mounts: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    project: Path | None = None
    stage: str = ""
    stage_in: tuple[str, ...] = ()
    grace: int = 0
    watchdog: int = 0
    debug: int | None = None
    spare: int = 0
    requeue: tuple[str, ...] = ()  # `hpcstack requeue` as a node starts it; empty: never
    bind: bool = True
    batch: bool = False
    home: bool | None = None
    slurm: bool | None = None
    all_stderr: bool = False
    label: bool = False
    only_shown: bool = False
    serves: Served | None = None  # what the command is to be served as
    needs: tuple[str, ...] = ()  # packages that are added where the image lacks them
    workdir: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    # Each task is to have all GPUs that the job has on its node, even if the job gives them by the
    # task. The modes that start ranks themselves always do.
    all_gpus: bool = False

    @property
    def folder(self) -> Path:
        """The folder that the command starts in: srun's --chdir, else the current one."""
        asked = self.resources.extra.value("--chdir")
        return self.workdir or (Path.cwd() / asked if asked else Path.cwd())

    @property
    def goes_on(self) -> bool:
        """Whether the step survives a failed rank: it is elastic, or restarts its workers."""
        return bool(self.resources.elastic or self.resources.restarts)


def resolve_mount(said: str) -> str:
    """Return the value SAID of --mount with an absolute source whose links are resolved.

    A relative source is looked up in the current folder. Raise InputError where a relative source
    does not exist, or no runtime accepts the mount.
    """
    source, colon, target = said.partition(":")
    if source and not source.startswith("/"):
        if not Path(source).exists():
            raise InputError(
                f"--mount {said}: {Path.cwd() / source} does not exist",
                "--mount /scratch/data:/data",
                page="bring-data-and-images-to-nodes",
            )
        source = str(Path.cwd() / source)
    if source and Path(source).exists():
        # Not every runtime follows a link, so the nodes are given what it leads to.
        source = os.path.realpath(source)

    if not colon or ":" in target:
        problem = "SOURCE:TARGET is needed"
        if target.endswith((":ro", ":rw")):
            problem = "read-only mounts are not offered"
        wanted_target = target.partition(":")[0] or "/data"
        hint = f"--mount {source}:{wanted_target}"
        first, comma, second = target.partition(",")
        if comma and ":" in second:
            problem = "each mount has a --mount of its own"
            hint = f"--mount {source}:{first} --mount {second}"
        raise InputError(
            f"--mount {said}: {problem}",
            hint,
            page="bring-data-and-images-to-nodes",
        )
    is_the_root = bool(target) and not target.strip("/")
    if is_the_root or f"{target.rstrip('/')}/".startswith(OF_THE_IMAGE):
        raise InputError(
            f"--mount {said}: it would cover what the image starts with",
            f"--mount {source}:/data",
            page="bring-data-and-images-to-nodes",
        )
    # The runtime says what else it does not take (`Runtime.check_mounts`).
    if not MOUNT.fullmatch(f"{source}:{target}"):
        raise InputError(
            f"--mount {said!r} is not SOURCE:TARGET of two absolute paths without ':' and ','",
            f"e.g. --mount {Path.cwd()}/data:/data",
            page="bring-data-and-images-to-nodes",
        )
    check_file_mount(Path(source), target)
    return f"{source}:{target}"


def check_grace(grace: int, limit: str) -> None:
    """Raise InputError where GRACE, in seconds, is no shorter than the time LIMIT of the job.

    The ranks would be signalled before they began. An empty or unlimited LIMIT allows any GRACE.
    """
    if not grace or not limit:
        return
    seconds = (parse_minutes(limit) or 0) * 60
    if seconds and grace >= seconds:
        raise InputError(
            f"--grace {grace}: the whole job has only {seconds} s (--time {limit})",
            "a smaller --grace",
            page="stop-before-the-time-limit",
        )


def check_srun_options(
    passed: Sequence[str], own: Sequence[str], runner: Runner, *, batch: bool
) -> None:
    """Raise InputError for the first of the PASSED options that srun does not know.

    With BATCH, options of sbatch are accepted as well. OWN are hpcstack's options, which are also
    searched for the nearest spelling. Nothing is checked where srun is missing, or its --help
    lists no options.
    """
    if not passed or not runner.has("srun"):
        return
    tools = ("srun", "sbatch") if batch else ("srun",)
    known = Client(runner).list_options(*tools)
    if not known:
        return

    # A --help leaves out what is for few: what some release knows is left to the one that is here.
    every = {*known, *(option for tool in tools for option in list_known_options(tool))}
    for word in passed:
        option = word.partition("=")[0]
        if option in OF_HPCSTACK:
            raise InputError(
                f"{option}: {OF_HPCSTACK[option]}", "leave it out", page="write-a-job-script"
            )
        if option in every:
            continue
        if not batch and find_scope(option) is Scope.JOB:
            raise InputError(
                f"{option} is an option of sbatch, and this launch is not submitted as a job",
                "add --batch",
                page="write-a-job-script",
            )
        near = did_you_mean(option, [*known, *OPTIONS, *own])
        raise InputError(
            f"{option}: neither hpcstack nor {' or '.join(tools)} knows it{near}",
            "srun --help",
            page="write-a-job-script",
        )
