"""Choose the cores of each rank: those near its GPU, in equal parts, by the node's topology.

Slurm's `--cpu-bind=mask_cpu` counts only where the step has the whole node
(https://slurm.schedmd.com/srun.html). Where it has less, nothing is bound, and Slurm's own choice
stands.
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


# Beside --cpu-bind, Slurm drops --hint without a word.
ABOUT_CORES = ("--cpu-bind", "--hint")


@dataclass(frozen=True)
class Binding:
    """The cores of each rank of a node, by local rank, and why.

    `cpus` are lists as Linux writes them, e.g. 0-12,104-116.
    """

    cpus: tuple[str, ...]
    why: str

    @property
    def masks(self) -> str:
        """The value of srun's --cpu-bind=mask_cpu."""
        return ",".join(make_cpu_mask(one) for one in self.cpus)


def bind_ranks(resources: Resources, node: NodeType | None, taken: Share) -> Binding | None:
    """Return the cores of each rank on NODE; None where nothing is bound.

    Ranks are bound where the step takes the whole node with a rank per GPU, and the site says which
    cores are near each GPU. A --cpu-bind of the user's own is left alone. Raise InputError for a
    topology that is not recorded.
    """
    if node is None or not (node.topology or node.gpu_cpus):
        return None
    near = node.gpu_cpus or _read_topology(node.topology)
    has_all_gpus = taken.gpus == node.real_gpus and taken.gpus == len(near)
    if not has_all_gpus or not takes_whole_node(resources, node, taken):
        return None
    if resources.extra.has(*ABOUT_CORES):
        return None
    ranks = resources.ntasks_per_node or taken.ranks
    if ranks != len(near):
        return None

    source = "gpu_cpus in site.yaml"
    if not node.gpu_cpus:
        source = f"topology {node.topology}"
    return Binding(tuple(share_cores(near)), f"each rank on the cores near its GPU: {source}")


def may_bind_by_node(resources: Resources, node: NodeType | None, taken: Share) -> bool:
    """Whether each rank may be bound to the cores that its node says are near its GPU.

    That is so where the step has a rank for each real GPU that it takes, and the site has recorded
    no topology. A rank never gets a core that it did not have (launchers/in-image/rank.sh).
    """
    if node is None or node.topology or node.gpu_cpus or not node.real_gpus:
        return False
    if resources.extra.has(*ABOUT_CORES):
        return False
    ranks = resources.ntasks_per_node or taken.ranks
    return bool(taken.gpus) and ranks == taken.gpus


def takes_whole_node(resources: Resources, node: NodeType, taken: Share) -> bool:
    """Whether a step has every CPU of NODE: by --exclusive, or because it asks for all of them."""
    return resources.exclusive or (node.cpus > 0 and taken.cpus >= node.cpus)


def _read_topology(name: str) -> tuple[str, ...]:
    """Return, for each GPU of the recorded topology NAME, the cores near it."""
    known = facts.read_topologies()
    if name not in known:
        raise InputError(
            f"site.yaml: there is no topology {name!r}{did_you_mean(name, known)}",
            f"known: {', '.join(known)}",
            page="bind-ranks-to-cores",
        )
    return known[name].gpu_cpus


def share_cores(near: Sequence[str]) -> list[str]:
    """Return, for each GPU, its part of the cores NEAR it.

    GPUs that are near the same cores share each range of them equally.

    >>> share_cores(["0-3,8-11", "0-3,8-11", "4-7,12-15"])
    ['0-1,8-9', '2-3,10-11', '4-7,12-15']
    """
    out = []
    for gpu, cpus in enumerate(near):
        sharing = [other for other, theirs in enumerate(near) if theirs == cpus]
        out.append(_take_part(cpus, sharing.index(gpu), len(sharing)))
    return out


def _take_part(cpus: str, part: int, parts: int) -> str:
    """Return part number PART, from 0, of PARTS equal parts of each range in CPUS.

    Linux mostly numbers the first threads of all cores in one range, the second ones in another.
    The same part of each range keeps the threads of a core together. CPUS are returned whole where
    a range has fewer of them than there are parts.
    """
    ranges = []
    for first, last in parse_cpu_list(cpus):
        size = (last - first + 1) // parts
        if size == 0:
            return cpus  # fewer cores than GPUs: all share all of them
        ranges.append((first + part * size, first + (part + 1) * size - 1))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
