"""What somebody asks to be launched, and what of it is refused as it is read."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError, did_you_mean
from hpcstack.launch.resources import Resources
from hpcstack.recipe.fields import check_mount
from hpcstack.slurm.options import Scope, find_scope
from hpcstack.slurm.query import parse_minutes, parse_srun_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcstack.core.process import Runner

NO_RESOURCES = Resources()


@dataclass(frozen=True)
class LaunchRequest:
    """A command to be run in an image, and how: the options of `hpcstack launch` by their names.

    `name` is a stack, a module or a recipe; empty where a loaded module names the image. An empty
    `mode` is the recipe's, a `workdir` of None this shell's, a `home` of None as the runtime has
    it. `only_shown`: what Slurm's limits say against it is told and not refused, since a script is
    also written for a partition that is yet to come.
    """

    command: tuple[str, ...]
    resources: Resources = NO_RESOURCES
    name: str = ""
    mode: str = ""
    runtime: str = "auto"
    mounts: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    stage: str = ""
    stage_in: tuple[str, ...] = ()
    grace: int = 0
    watchdog: int = 0
    spare: int = 0
    bind: bool = True
    batch: bool = False
    home: bool | None = None
    all_stderr: bool = False
    only_shown: bool = False
    workdir: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def goes_on(self) -> bool:
        """Whether the others go on without a rank that failed: elastic, or started again."""
        return bool(self.resources.elastic or self.resources.restarts)


def absolute_mount(said: str) -> str:
    """What --mount names, a folder below this one made absolute.

    InputError for what no runtime takes.
    """
    source, colon, target = said.partition(":")
    if source and not source.startswith("/"):
        if not Path(source).exists():
            raise InputError(
                f"--mount {said}: {Path.cwd() / source} does not exist",
                "--mount /scratch/data:/data",
            )
        source = str(Path.cwd() / source)
    if source and Path(source).exists():
        source = os.path.realpath(
            source
        )  # not every runtime follows a link; nodes see what it leads to
    if not colon or ":" in target:
        what = (
            "read-only mounts are not offered"
            if target.endswith((":ro", ":rw"))
            else "SOURCE:TARGET is needed"
        )
        raise InputError(
            f"--mount {said}: {what}", f"--mount {source}:{target.partition(':')[0] or '/data'}"
        )
    try:
        return check_mount(f"{source}:{target}")
    except ValueError as error:
        raise InputError(f"--mount {error}", f"e.g. --mount {Path.cwd()}/data:/data") from None


def check_grace(grace: int, limit: str) -> None:
    """InputError where the ranks would be told before they began."""
    if grace and limit and (most := parse_minutes(limit) or 0) and grace >= most * 60:
        raise InputError(
            f"--grace {grace}: the job has {most * 60} s in all (--time {limit})",
            "a smaller --grace",
        )


def check_srun_options(
    passed: Sequence[str], own: Sequence[str], runner: Runner, *, batch: bool
) -> None:
    """InputError for options, not ours, that srun (with BATCH: sbatch) does not know; OWN are ours,
    for the nearest.
    """
    if not passed or not runner.has("srun"):
        return
    tools = ("srun", "sbatch") if batch else ("srun",)
    known: set[str] = set()
    for tool in tools:
        known |= parse_srun_options("\n".join(runner.output([tool, "--help"]).tail))
    for word in passed if known else ():
        option = word.partition("=")[0]
        if option not in known and not batch and find_scope(option) is Scope.JOB:
            raise InputError(
                f"{option} is sbatch's, and this launch is not a job of its own", "add --batch"
            )
        if option not in known:
            near = did_you_mean(option, [*known, *own])
            raise InputError(
                f"{option}: neither hpcstack nor {' or '.join(tools)} knows it{near}", "srun --help"
            )
