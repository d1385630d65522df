"""Launch: one job step in an image, with Slurm's own words for its resources."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from hpcstack.errors import InputError
from hpcstack.process import Runner
from hpcstack.render.launcher import inner
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

    def slurm(self, tasks: int) -> list[str]:
        """srun's options, in a fixed order."""
        said = {
            "nodes": self.nodes,
            "ntasks-per-node": tasks,
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

    def shown(self) -> str:
        """The line as a shell would take it."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.environment.items())]
        return " ".join([*variables, shlex.join(self.argv)])


def image_of(name: str, store: Store) -> Artifact:
    """The image that NAME means: the one built last."""
    if artifact := store.newest(name):
        return artifact
    built = ", ".join(store.stacks()) or "none"
    raise InputError(f"no image of {name} is in {store.top} (there: {built})", f"hpcstack build {name}")


def ranks(resources: Resources, site: Site) -> int:
    """Ranks per node: as said, else one a GPU, else one."""
    real = site.node_type(resources.partition).real_gpus
    asked = resources.gpus_per_node if real else 0
    return resources.nproc_per_node or asked or real or 1


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
    script = inner(mode)
    if script:
        command = ("/bin/sh", "-c", script, "torchrun", str(ranks(resources, site)), *command)
    tasks = 1 if script else resources.ntasks_per_node
    step = Step(
        image=artifact.image,
        command=command,
        slurm=("--kill-on-bad-exit=1", f"--job-name={artifact.stack}", *resources.slurm(tasks)),
        mounts=(*site.mounts, *mounts),
        workdir=workdir or Path.cwd(),
        gpus=bool(site.node_type(resources.partition).real_gpus),
        environment={"PYTHONNOUSERSITE": os.environ.get("PYTHONNOUSERSITE", "1")} | (environment or {}),
    )
    return Plan(tuple(chosen.argv(step)), chosen.environment(step), chosen.name, reason)


def _check(resources: Resources, runtime: Runtime, site: Site) -> None:
    if resources.nodes < 1:
        raise InputError(f"-N {resources.nodes}: a step has at least one node")
    if runtime.name == "local" and resources.nodes > 1:
        raise InputError(f"-N {resources.nodes}: there is no Slurm here, only this machine", "leave out -N")
    if resources.partition and site.partitions and resources.partition not in site.partitions:
        from hpcstack.errors import did_you_mean

        near = did_you_mean(resources.partition, site.partitions)
        raise InputError(
            f"the site names no partition {resources.partition!r}{near}", f"known: {', '.join(site.partitions)}"
        )
