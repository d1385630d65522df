"""Which cores each rank gets: those near its GPU, in equal parts, from the node's recorded
topology.

Slurm's `--cpu-bind=mask_cpu` counts only where the step has the whole node
(https://slurm.schedmd.com/srun.html), so nothing is bound where it has less: there Slurm's own
choice is right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core.cpus import make_cpu_mask, parse_cpu_list
from hpcstack.core.errors import InputError, did_you_mean
from hpcstack.hardware import facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcstack.launch.resources import Resources, Share
    from hpcstack.site.load import NodeType


@dataclass(frozen=True)
class Binding:
    """The cores of each rank of a node, by local rank, as a list that Linux writes (0-12,104-116);
    and why.
    """

    cpus: tuple[str, ...]
    why: str

    @property
    def masks(self) -> str:
        return ",".join(make_cpu_mask(one) for one in self.cpus)


def bind_ranks(resources: Resources, node: NodeType | None, taken: Share) -> Binding | None:
    """None where the site names no topology for the NODE, or the step does not have all of one, a
    rank per GPU.
    """
    if node is None or not (node.topology or node.gpu_cpus):
        return None
    near = node.gpu_cpus or _recorded(node.topology)
    if (
        taken.gpus != node.real_gpus
        or taken.gpus != len(near)
        or not takes_whole_node(resources, node, taken)
    ):
        return None
    if resources.extra.has("--cpu-bind"):
        return None
    ranks = resources.ntasks_per_node or taken.ranks
    if ranks != len(near):
        return None
    source = (
        f"topology {node.topology}"
        if node.topology and not node.gpu_cpus
        else "gpu_cpus in site.yaml"
    )
    return Binding(tuple(share_cores(near)), f"each rank on the cores near its GPU: {source}")


def takes_whole_node(resources: Resources, node: NodeType, taken: Share) -> bool:
    return resources.exclusive or (node.cpus > 0 and taken.cpus >= node.cpus)


def _recorded(name: str) -> tuple[str, ...]:
    known = facts.read_topologies()
    if name not in known:
        raise InputError(
            f"site.yaml: no topology {name!r}{did_you_mean(name, known)}",
            f"known: {', '.join(known)}",
        )
    return known[name].gpu_cpus


def share_cores(near: Sequence[str]) -> list[str]:
    """For each GPU its part of the cores near it: GPUs that are near the same cores share each
    range of them equally.

    >>> shared(["0-3,8-11", "0-3,8-11", "4-7,12-15"])
    ['0-1,8-9', '2-3,10-11', '4-7,12-15']
    """
    out = []
    for place, cpus in enumerate(near):
        alike = [other for other, theirs in enumerate(near) if theirs == cpus]
        part, parts = alike.index(place), len(alike)
        out.append(_part(cpus, part, parts))
    return out


def _part(cpus: str, part: int, parts: int) -> str:
    """Part PART of PARTS of each range: threads of one core are as far apart in every range, and
    stay together.
    """
    ranges = []
    for first, last in parse_cpu_list(cpus):
        size = (last - first + 1) // parts
        if size == 0:
            return cpus  # fewer cores than GPUs: they share them all
        ranges.append((first + part * size, first + (part + 1) * size - 1))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
