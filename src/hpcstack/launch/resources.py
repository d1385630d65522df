"""What a step asks for, in Slurm's own words, and what it then has of each node."""

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
    """What a step asks for; the names are Slurm's. Empty or 0 is not said.

    `ntasks` are those of all nodes together. `elastic` is MIN:MAX nodes for torchrun, `restarts`
    how often it starts its workers again; `extra` are further options of srun.
    """

    nodes: int = 1
    ntasks: int = 0
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
    elastic: str = ""
    restarts: int = 0
    extra: SlurmOptions = NO_OPTIONS

    def __post_init__(self) -> None:
        if self.elastic:
            least, _, most = self.elastic.partition(":")
            if not (least.isdigit() and most.isdigit() and 0 < int(least) <= int(most)):
                raise InputError(
                    f"--elastic {self.elastic}: MIN:MAX nodes are wanted", "e.g. --elastic 2:4"
                )

    @property
    def span(self) -> str:
        """Slurm's --nodes: a number, or MIN-MAX of an elastic step."""
        if self.elastic:
            return self.elastic.replace(":", "-")
        return str(self.nodes) if self.nodes else ""

    def parts(self) -> list[Part]:
        """srun's options, in a fixed order, each with where it comes from."""
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
        if self.exclusive:
            out.append(make_option("--exclusive", why=ASKED))
        out += [make_option(one.name, one.value, ASKED) for one in self.extra.given]
        return out


ASKED = "asked for"


@dataclass(frozen=True)
class Share:
    """What a step takes of each node: real GPUs (0 where there is none), ranks, CPUs of a node (0:
    not said).
    """

    gpus: int
    ranks: int
    cpus: int


# The number of GPUs in the values of --gres and --gpus-per-task.
OF_GRES = re.compile(r"(?:.*,)?gpu(?::[A-Za-z][A-Za-z0-9_.-]*)?:(\d+)")
OF_A_TASK = re.compile(r"(?:[a-z0-9_]+:)?(\d+)")


def gpus_said(resources: Resources) -> int:
    """GPUs per node, also where they were asked for in another of Slurm's words; 0 where they were
    not.
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


def node_of(resources: Resources, site: Site, inside: Mapping[str, str]) -> NodeType | None:
    """The node type that a step runs on: of the partition that was asked for, else of the job that
    it is INSIDE.
    """
    return site.node_type(resources.partition or inside.get("SLURM_JOB_PARTITION", ""))


def machine_of(resources: Resources, site: Site, inside: Mapping[str, str]) -> str:
    """What `uname -m` says on the nodes of a step; empty where the site does not say it of their
    partition.
    """
    node = node_of(resources, site, inside)
    return node.architecture if node else ""


def share_resources(
    resources: Resources, site: Site, inside: Mapping[str, str], *, here: bool = False
) -> Share:
    """Real GPUs as asked, else all that there are: of the job that the step is INSIDE (its
    variables, empty for none), else of the node type. Where the site says nothing, what was asked
    counts as real.

    HERE asks this machine instead: a step without Slurm.
    """
    node = node_of(resources, site, inside)
    said, given = gpus_said(resources), inside.get("SLURM_GPUS_ON_NODE", "")
    if here:
        gpus = said or len(list(Path("/dev").glob("nvidia[0-9]*")))
    elif node is not None and not node.real_gpus:
        gpus = 0
    elif inside:
        gpus = said or (int(given) if given.isdigit() else 0)
    else:
        gpus = said or (node.real_gpus if node else 0)
    cpus = resources.cpus_per_task
    if not cpus and inside.get("SLURM_CPUS_ON_NODE", "").isdigit() and node and node.cpus:
        cpus = int(inside["SLURM_CPUS_ON_NODE"])
    elif not cpus and node and node.cpus:
        cpus = node.cpus * gpus // node.real_gpus if gpus and node.real_gpus else node.cpus
    return Share(gpus, resources.nproc_per_node or gpus or 1, cpus)
