"""Which of the site's node types a step may run on: by its partitions, and by what it asks for.

A partition may have nodes of several types. A type of GPU, a feature or a name of a node chooses among
them. Where several are left, what fits all of them is asked for, and an image must run on each.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from hpcstack.hardware import facts
from hpcstack.site.model import Gpus, NodeType
from hpcstack.slurm.gpus import GresError, list_requests_of_variables, read_gres
from hpcstack.slurm.nodelist import expand_nodelist

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hpcstack.launch.resources import Resources
    from hpcstack.site.load import Site
    from hpcstack.slurm.client import Client
    from hpcstack.slurm.query import NodeKind


def find_node_type(
    resources: Resources, site: Site, inside: Mapping[str, str], client: Client
) -> NodeType | None:
    """Return the node type that a step runs on; None where the site does not describe it.

    Of several types it is one that promises no more than each of them has.
    """
    names = list_node_types(resources, site, inside, client)
    return merge_node_types([site.node_types[name] for name in names])


def find_architecture(
    resources: Resources, site: Site, inside: Mapping[str, str], client: Client
) -> str:
    """Return what `uname -m` prints on the nodes of a step; empty where nobody knows, or they differ."""
    names = list_node_types(resources, site, inside, client)
    found = {site.node_types[name].architecture for name in names}
    return found.pop() if len(found) == 1 else ""


def list_node_types(
    resources: Resources, site: Site, inside: Mapping[str, str], client: Client
) -> tuple[str, ...]:
    """Return the names of the node types that a step may run on.

    They are those of the partitions that were asked for, else of the job that the step is INSIDE,
    else of the default one. CLIENT is asked which nodes are meant only where a partition has several
    types and the step names nodes or features.
    """
    partitions = resources.partition or inside.get("SLURM_JOB_PARTITION", "")
    names = site.kinds(partitions)
    if len(names) < 2:
        return names

    asked = resources.gpu_requests or list_requests_of_variables(inside, "SLURM")
    words = {word for request in asked for word in request.types}
    if words:
        names = _keep(
            names, lambda name: any(_has_gpu(site.node_types[name], one) for one in words)
        )
    is_chosen = resources.nodelist or resources.constraint or inside
    if len(names) < 2 or not is_chosen:
        return names
    kinds = _list_chosen_kinds(resources, partitions, inside, client)
    return _keep(names, lambda name: any(_is_of_kind(site.node_types[name], one) for one in kinds))


def _keep(names: tuple[str, ...], fits: Callable[[str], bool]) -> tuple[str, ...]:
    """Return those of NAMES that fit; all of them where none does, since then nothing is known."""
    return tuple(name for name in names if fits(name)) or names


def _list_chosen_kinds(
    resources: Resources, partitions: str, inside: Mapping[str, str], client: Client
) -> list[NodeKind]:
    """Return the kinds of nodes of PARTITIONS that a step means by its names and features of nodes."""
    nodes = resources.nodelist or inside.get("SLURM_JOB_NODELIST", "")
    meant = set(expand_nodelist(nodes)) if "/" not in nodes else set()
    feature = resources.constraint
    is_one = re.fullmatch(r"[A-Za-z0-9_.-]+", feature)  # what a&b means is left to Slurm
    return [
        kind
        for kind in client.query_node_kinds(partitions)
        if (not meant or meant & kind.nodes) and (not is_one or feature in kind.features)
    ]


def _has_gpu(node: NodeType, word: str) -> bool:
    """Return whether the GPUs of NODE are those that gres.conf calls WORD."""
    if node.gpus is None:
        return False
    if word in node.gpus.mig:
        return True
    known, own = facts.find_gpu(word), facts.find_gpu(node.gpus.model)
    if known and own:
        return known.model == own.model
    return word.lower() == node.gpus.model.lower()


def _is_of_kind(node: NodeType, kind: NodeKind) -> bool:
    """Return whether nodes of Slurm's KIND may be of the type NODE."""
    if node.cpus and kind.cpus and node.cpus != kind.cpus:
        return False
    try:
        found = [one for one in read_gres(kind.gres) if one.name == "gpu"]
    except GresError:
        return True  # nobody knows
    whole = [one for one in found if not one.is_slice]
    count = node.gpus.count if node.gpus else 0
    if sum(one.count for one in whole) != count:
        return False
    return all(_has_gpu(node, one.type) for one in found if one.type)


def merge_node_types(nodes: Sequence[NodeType]) -> NodeType | None:
    """Return a type that promises no more than each of NODES has; None for no types."""
    if len(nodes) < 2:
        return nodes[0] if nodes else None
    every = [node.gpus for node in nodes]
    gpus = None
    if all(every):
        having = [one for one in every if one]
        models = dict.fromkeys(one.model for one in having)
        gpus = Gpus(
            model="virtual" if "virtual" in models else " or ".join(models),
            count=min(one.count for one in having),
            nvlink=all(one.nvlink for one in having),
            domain_nodes=_same([one.domain_nodes for one in having], 0),
        )
    return NodeType(
        gpus=gpus,
        driver=_same([node.driver for node in nodes], ""),
        architecture=nodes[0].architecture,  # plan_step looks at each
        cpus=min(node.cpus for node in nodes),
        hcas=_same([node.hcas for node in nodes], ()),
        hca_rate=min(node.hca_rate for node in nodes),
        topology=_same([node.topology for node in nodes], ""),
        gpu_cpus=_same([node.gpu_cpus for node in nodes], ()),
        virtual=any(node.virtual for node in nodes),
    )


T = TypeVar("T")


def _same(values: Sequence[T], otherwise: T) -> T:
    """Return what all VALUES are; OTHERWISE where they differ."""
    return values[0] if all(value == values[0] for value in values) else otherwise
