"""Launch: one job step in an image, with Slurm's own words for its resources."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpcstack.errors import InputError
from hpcstack.fit import Fit, fit
from hpcstack.process import Runner
from hpcstack.publish import released
from hpcstack.render.launcher import inner, with_compat
from hpcstack.runtimes import Runtime, Step, choose
from hpcstack.site import Site
from hpcstack.store import Artifact, Store

OWN_FAILURE = 125


@dataclass(frozen=True)
class Resources:
    """What a step asks for; the names are Slurm's. Empty or 0 is not said."""

    nodes: int = 1
    ntasks_per_node: int = 0
    gpus_per_node: int = 0
    cpus_per_task: int = 0
    nproc_per_node: int = 0
    partition: str = ""
    account: str = ""
    qos: str = ""
    reservation: str = ""
    constraint: str = ""
    nodelist: str = ""
    time: str = ""
    exclusive: bool = False
    extra: tuple[str, ...] = field(default=())

    def slurm(self) -> list[str]:
        """srun's options, in a fixed order."""
        said = {
            "nodes": self.nodes,
            "ntasks-per-node": self.ntasks_per_node,
            "gpus-per-node": self.gpus_per_node,
            "cpus-per-task": self.cpus_per_task,
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "reservation": self.reservation,
            "constraint": self.constraint,
            "nodelist": self.nodelist,
            "time": self.time,
        }
        out = [f"--{name}={value}" for name, value in said.items() if value]
        return [*out, *(["--exclusive"] if self.exclusive else []), *self.extra]


@dataclass(frozen=True)
class Plan:
    """The line that would be run, with its environment and the reasons."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    runtime: str
    reason: str
    fit: Fit | None = None

    def shown(self) -> str:
        """The line as a shell would take it."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.environment.items())]
        return " ".join([*variables, shlex.join(self.argv)])


def image_of(name: str, store: Store) -> Artifact:
    """The image of NAME that was built last."""
    if artifact := store.newest(name):
        return artifact
    built = ", ".join(store.stacks()) or "none"
    raise InputError(f"no image of {name} is in {store.top} (there: {built})", f"hpcstack build {name}")


def image_to_launch(name: str, site: Site, store: Store, environ: Mapping[str, str]) -> tuple[Artifact, str]:
    """The image that users mean by NAME, and why: the loaded module's, else the published one, else the last built."""
    if environ.get("HPCSTACK_STACK") == name:
        loaded = store.artifact(Path(environ.get("HPCSTACK_IMAGE", "")).parent.name)
        if loaded and str(loaded.image) == environ["HPCSTACK_IMAGE"]:
            return loaded, f"module {environ.get('HPCSTACK_RELEASE', '')}"
    if found := released(name, site, store):
        return found
    return image_of(name, store), "not published: the image built last"


@dataclass(frozen=True)
class Share:
    """What a step takes of each node: real GPUs (0 where there is none), ranks, CPUs of a task (0: not said)."""

    gpus: int
    ranks: int
    cpus: int


def share(resources: Resources, site: Site, *, here: bool = False) -> Share:
    """Real GPUs as asked, else all of the node type's; where the site says nothing, what was asked counts as real.

    HERE asks this machine instead: a step without Slurm.
    """
    node = site.node_type(resources.partition)
    if node is not None and not here:
        gpus = (resources.gpus_per_node or node.real_gpus) if node.real_gpus else 0
    else:
        gpus = resources.gpus_per_node or (len(list(Path("/dev").glob("nvidia[0-9]*"))) if here else 0)
    cpus = resources.cpus_per_task
    if not cpus and node and node.cpus:
        cpus = node.cpus * gpus // node.real_gpus if gpus else node.cpus
    return Share(gpus, resources.nproc_per_node or gpus or 1, cpus)


def plan(
    artifact: Artifact,
    command: tuple[str, ...],
    mode: str,
    resources: Resources,
    site: Site,
    runner: Runner,
    *,
    runtime: str = "auto",
    workdir: Path | None = None,
    mounts: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
) -> Plan:
    """The step of COMMAND in the image of ARTIFACT. InputError for resources that make no sense here."""
    chosen, reason = choose(site.runtime if runtime == "auto" else runtime, runner)
    _check(resources, chosen, site)
    taken = share(resources, site, here=chosen.name == "local")
    script, fits = inner(mode), _fit(artifact, resources, site)
    if script:
        command = ("/bin/sh", "-c", script, "torchrun", str(taken.ranks), *command)
    elif taken.gpus and chosen.name == "pyxis":
        command = with_compat(command)  # Apptainer has it in the image's own environment
    step = Step(
        image=artifact.image,
        command=command,
        slurm=("--kill-on-bad-exit=1", f"--job-name={artifact.stack}", *slurm_options(resources, taken, bool(script))),
        mounts=(*site.mounts, *mounts),
        workdir=workdir or Path.cwd(),
        gpus=bool(taken.gpus),
        environment=_environment(site) | (environment or {}),
        image_environment=artifact.environment,
    )
    own = {} if chosen.name == "local" else {"SLURM_EXIT_ERROR": os.environ.get("SLURM_EXIT_ERROR", str(OWN_FAILURE))}
    return Plan(tuple(chosen.argv(step)), chosen.environment(step) | own, chosen.name, reason, fits)


def _environment(site: Site) -> dict[str, str]:
    """What every step is told: the fabric's settings, and no packages of ~/.local. What the user has set wins."""
    told = {"PYTHONNOUSERSITE": "1"} | site.fabric.environment()
    return {name: os.environ.get(name, value) for name, value in told.items()}


def _fit(artifact: Artifact, resources: Resources, site: Site) -> Fit | None:
    """How the nodes' driver and GPU run the image; None where there is no GPU or the site does not say."""
    node = site.node_type(resources.partition)
    if not node or not node.gpus or not node.real_gpus or not node.driver:
        return None
    return fit(node.driver, node.gpus.model, artifact.environment)


def slurm_options(resources: Resources, taken: Share, one_task: bool) -> list[str]:
    """srun's options, with the GPUs and, where one task holds a whole node's ranks, the CPUs said."""
    said = replace(resources, gpus_per_node=taken.gpus or resources.gpus_per_node)
    if one_task:
        said = replace(said, ntasks_per_node=1, cpus_per_task=taken.cpus)
    return said.slurm()


def _check(resources: Resources, runtime: Runtime, site: Site) -> None:
    if resources.nodes < 1:
        raise InputError(f"-N {resources.nodes}: a step has at least one node")
    if runtime.name == "local" and (asked := replace(resources, nodes=0, gpus_per_node=0).slurm()):
        raise InputError(f"{' '.join(asked)}: there is no Slurm in this step, only this machine", "leave it out")
    if runtime.name == "local" and resources.nodes > 1:
        raise InputError(f"-N {resources.nodes}: there is no Slurm in this step, only this machine", "leave out -N")
    if resources.partition and site.partitions and resources.partition not in site.partitions:
        from hpcstack.errors import did_you_mean

        near = did_you_mean(resources.partition, site.partitions)
        raise InputError(
            f"the site names no partition {resources.partition!r}{near}", f"known: {', '.join(site.partitions)}"
        )
