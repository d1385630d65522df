"""What somebody asks to be launched, judged before Slurm is asked: the image, the mounts, the
options.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError, did_you_mean
from hpcstack.launch.image import choose_image
from hpcstack.launch.packages import plan_packages
from hpcstack.launch.plan import Extras, plan_step
from hpcstack.launch.record import keep_prolog
from hpcstack.launch.resources import machine_of
from hpcstack.launch.run import PlannedLaunch
from hpcstack.launch.staging import plan_staging
from hpcstack.recipe.fields import check_mount
from hpcstack.site.model import PLATFORMS
from hpcstack.slurm.options import Scope, find_scope
from hpcstack.slurm.query import find_allocation, parse_minutes, parse_srun_options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpcstack.core.process import Runner
    from hpcstack.launch.resources import Resources
    from hpcstack.recipe.catalog import Catalog
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact


@dataclass(frozen=True)
class LaunchRequest:
    """NAME (a stack, a module, a recipe, or nothing where a module is loaded), the command, and how
    it is to be run.
    """

    name: str
    argv: tuple[str, ...]
    resources: Resources
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
    home: bool | None = None  # None: as the site has it
    all_stderr: bool = False
    only_shown: bool = False


def plan_launch(
    request: LaunchRequest, catalog: Callable[[], Catalog], site: Site, runner: Runner
) -> PlannedLaunch:
    """REQUEST with its image and plan. InputError for what cannot be launched."""
    inside = {} if request.batch else find_allocation(os.environ)
    machine = (
        os.uname().machine
        if request.runtime == "local"
        else machine_of(request.resources, site, inside)
    )
    there = site.for_architecture(machine) if machine else site
    chosen, layer = choose_image(
        request.name, catalog, there, os.environ, PLATFORMS.get(machine, "")
    )
    artifact = chosen.artifact
    require_signed(artifact, site, runner)
    home = site.mount_home if request.home is None else request.home
    wanted = (*layer, *request.packages)
    more = plan_packages(artifact, wanted, os.environ) if wanted else None
    made = plan_step(
        artifact,
        request.argv,
        request.mode or artifact.mode,
        request.resources,
        site,
        runner,
        runtime=request.runtime,
        mounts=request.mounts,
        job=request.batch,
        prolog=keep_prolog(),
        home=home,
        only_shown=request.only_shown,
        extras=Extras(
            plan_staging(artifact, site, request.stage, request.stage_in),
            more,
            request.grace,
            request.watchdog,
            request.spare,
            bind=request.bind,
            asked=bool(request.stage or request.stage_in),
        ),
    )
    check_grace(request.grace, request.resources.time)
    runner.which(made.argv[0])
    if made.fit and not made.fit.runs:
        raise InputError(
            f"the image does not run on these nodes: {made.fit}", "hpcstack list shows what does"
        )
    goes_on = bool(request.resources.elastic or request.resources.restarts)
    return PlannedLaunch(
        site,
        runner,
        made,
        artifact,
        chosen.why,
        request.argv,
        request.mounts,
        more,
        request.all_stderr,
        goes_on,
        home,
        chosen.doubt,
    )


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


def require_signed(artifact: Artifact, site: Site, runner: Runner) -> None:
    """InputError where the site runs only what is signed, and this is not."""
    if not site.signatures.required:
        return
    from hpcstack.store.signing import why_untrusted

    if why := why_untrusted(artifact, site.signatures.keys, runner):
        raise InputError(
            f"this site runs only signed images; {artifact.image}: {why}",
            "tell who looks after the site: hpcstack sign",
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
