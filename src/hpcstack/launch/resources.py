"""The resources that a step asks for, in Slurm's own words, and its share of each node.

Tested in tests/unit/launch/test_plan.py and tests/unit/launch/test_binding.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError
from hpcstack.runtimes.base import Part, make_option
from hpcstack.slurm.options import NO_OPTIONS, SlurmOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.site.load import NodeType, Site


@dataclass(frozen=True)
class Resources:
    """What a step asks for, under Slurm's names. Empty or 0 means not asked for.

    `without_gpus` asks for no GPU; otherwise all GPUs of a node are taken. `ntasks` counts the
    tasks of all nodes together. `elastic` is MIN:MAX nodes for torchrun, and `restarts` how often
    torchrun starts its workers again. `extra` are further options of srun.
    """

    nodes: int = 1
    ntasks: int = 0
    ntasks_per_node: int = 0
    gpus_per_node: int = 0
    without_gpus: bool = False
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
    elastic: str = ""
    restarts: int = 0
    extra: SlurmOptions = NO_OPTIONS

    def __post_init__(self) -> None:
        if self.elastic:
            least, _, most = self.elastic.partition(":")
            if not (least.isdigit() and most.isdigit() and 0 < int(least) <= int(most)):
                raise InputError(
                    f"--elastic {self.elastic}: MIN:MAX nodes are wanted",
                    "e.g. --elastic 2:4",
                    page="choose-a-mode",
                )

    @property
    def span(self) -> str:
        """The value of Slurm's --nodes: a number, or MIN-MAX for an elastic step."""
        if self.elastic:
            return self.elastic.replace(":", "-")
        return str(self.nodes) if self.nodes else ""

    def parts(self) -> list[Part]:
        """Return srun's options in a fixed order, each marked as asked for; `extra` come last."""
        said = {
            "nodes": self.span,
            "ntasks": self.ntasks,
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
        out = [make_option(f"--{name}", value, ASKED) for name, value in said.items() if value]
        if self.without_gpus:
            out.append(make_option("--gpus-per-node", 0, ASKED))
        if self.exclusive:
            out.append(make_option("--exclusive", why=ASKED))
        out += [make_option(one.name, one.value, ASKED) for one in self.extra.given]
        return out


ASKED = "asked for"


@dataclass(frozen=True)
class Share:
    """What a step takes of each node.

    `gpus` are real ones only: 0 where Slurm's GPUs have no device behind them. A `cpus` of 0 means
    that nobody knows.
    """

    gpus: int
    ranks: int
    cpus: int


# The number of GPUs in the values of --gres and --gpus-per-task, e.g. gpu:a100:4 and a100:1
OF_GRES = re.compile(r"(?:.*,)?gpu(?::[A-Za-z][A-Za-z0-9_.-]*)?:(\d+)")
OF_A_TASK = re.compile(r"(?:[a-z0-9_]+:)?(\d+)")


def count_gpus_said(resources: Resources) -> int:
    """Return the GPUs per node that RESOURCES ask for; 0 where they ask for none.

    --gres and --gpus-per-task count, too.
    """
    if resources.gpus_per_node:
        return resources.gpus_per_node
    of_the_node = OF_GRES.match(resources.extra.value("--gres"))
    if of_the_node:
        return int(of_the_node[1])
    of_each_task = OF_A_TASK.match(resources.extra.value("--gpus-per-task"))
    if of_each_task:
        return int(of_each_task[1]) * (resources.ntasks_per_node or 1)
    return 0


def find_node_type(resources: Resources, site: Site, inside: Mapping[str, str]) -> NodeType | None:
    """Return the node type that a step runs on; None where the site does not describe it.

    It is that of the partition that was asked for, else of the job that the step is INSIDE.
    """
    return site.node_type(resources.partition or inside.get("SLURM_JOB_PARTITION", ""))


def machine_of(resources: Resources, site: Site, inside: Mapping[str, str]) -> str:
    """Return what `uname -m` prints on the nodes of a step; empty where the site does not say."""
    node = find_node_type(resources, site, inside)
    if not node:
        return ""
    return node.architecture


def share_resources(
    resources: Resources, site: Site, inside: Mapping[str, str], *, here: bool = False
) -> Share:
    """Return what a step takes of each node.

    INSIDE are the variables of the job that it is in, empty for none. HERE means a step without
    Slurm, for which this machine's devices are counted. There is a rank per real GPU, else one,
    unless --nproc-per-node says otherwise.
    """
    node = find_node_type(resources, site, inside)
    gpus = _count_gpus(resources, node, inside, here=here)
    cpus = resources.cpus_per_task or _count_cpus(gpus, node, inside)
    return Share(gpus, resources.nproc_per_node or gpus or 1, cpus)


def _count_gpus(
    resources: Resources, node: NodeType | None, inside: Mapping[str, str], *, here: bool
) -> int:
    """Return the real GPUs per node: as many as asked for, else all that the job or NODE has.

    Where the site describes no NODE, GPUs that were asked for count as real.
    """
    if resources.without_gpus:
        return 0
    asked = count_gpus_said(resources)
    if here:
        return asked or len(list(Path("/dev").glob("nvidia[0-9]*")))
    if node is not None and not node.real_gpus:
        return 0
    if asked:
        return asked
    if inside:
        of_the_job = inside.get("SLURM_GPUS_ON_NODE", "")
        return int(of_the_job) if of_the_job.isdigit() else 0
    return node.real_gpus if node else 0


def _count_cpus(gpus: int, node: NodeType | None, inside: Mapping[str, str]) -> int:
    """Return the CPUs per node that go with so many GPUS.

    They are 0 where the site does not say how many NODE has. Inside a job they are the job's.
    Elsewhere a step that takes a part of the GPUs of NODE takes
    the same part of its CPUs.
    """
    if not node or not node.cpus:
        return 0
    of_the_job = inside.get("SLURM_CPUS_ON_NODE", "")
    if of_the_job.isdigit():
        return int(of_the_job)
    if gpus and node.real_gpus:
        return node.cpus * gpus // node.real_gpus
    return node.cpus
