"""What a step asks for, in Slurm's own words, and what it then has of each node."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hpcstack.errors import InputError
from hpcstack.runtimes.base import Part
from hpcstack.site import Site


@dataclass(frozen=True)
class Resources:
    """What a step asks for; the names are Slurm's. Empty or 0 is not said.

    `elastic` is MIN:MAX nodes for torchrun, `restarts` how often it starts its workers again; `extra` are further
    options of srun.
    """

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
    elastic: str = ""
    restarts: int = 0
    extra: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.elastic:
            least, _, most = self.elastic.partition(":")
            if not (least.isdigit() and most.isdigit() and 0 < int(least) <= int(most)):
                raise InputError(f"--elastic {self.elastic}: MIN:MAX nodes are wanted", "e.g. --elastic 2:4")

    @property
    def span(self) -> str:
        """Slurm's --nodes: a number, or MIN-MAX of an elastic step."""
        return self.elastic.replace(":", "-") if self.elastic else str(self.nodes) if self.nodes else ""

    def parts(self) -> list[Part]:
        """srun's options, in a fixed order, each with where it comes from."""
        said = {
            "nodes": self.span,
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
        out = [Part((f"--{name}={value}",), ASKED) for name, value in said.items() if value]
        out += [Part(("--exclusive",), ASKED)] if self.exclusive else []
        return [*out, *(Part((option,), ASKED) for option in self.extra)]

    def slurm(self) -> list[str]:
        """The same without reasons."""
        return [word for part in self.parts() for word in part.words]


ASKED = "asked for"


@dataclass(frozen=True)
class Share:
    """What a step takes of each node: real GPUs (0 where there is none), ranks, CPUs of a node (0: not said)."""

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
