"""Which of the site's node types a step may run on: by its partitions, and by what it asks for.

A partition may have nodes of several types. A type of GPU, a feature or a name of a node chooses among
them. Where several are left, what fits all of them is asked for, and an image must run on each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.hardware import facts
from hpcstack.site.model import NodeType, merge_node_types
from hpcstack.slurm.features import list_feature_sets
from hpcstack.slurm.gpus import (
    GresError,
    count_gpus_asked,
    is_slice,
    list_requests_of_variables,
    read_gres,
)
from hpcstack.slurm.nodelist import NodelistError, expand_nodelist, expand_typed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
    nodes = resources.nodes if resources.gpu_requests else 0
    count = count_gpus_asked(asked, nodes, resources.ntasks_per_node or 1) or 0
    words = {word for request in asked for word in request.types}
    if words:
        names = _keep(
            names, lambda name: any(_has_gpu(site.node_types[name], one) for one in words)
        )
    names = _keep(names, lambda name: _count_devices(site.node_types[name]) >= count)
    is_chosen = resources.nodelist or resources.constraint or inside
    if len(names) < 2 or not is_chosen:
        return names
    try:
        kinds = _list_chosen_kinds(resources, partitions, inside, client)
    except NodelistError:
        return names  # which nodes are meant nobody knows then
    return _keep(names, lambda name: any(_is_of_kind(site.node_types[name], one) for one in kinds))


def _keep(names: tuple[str, ...], fits: Callable[[str], bool]) -> tuple[str, ...]:
    """Return those of NAMES that fit; all of them where none does, since then nothing is known."""
    return tuple(name for name in names if fits(name)) or names


def _list_chosen_kinds(
    resources: Resources, partitions: str, inside: Mapping[str, str], client: Client
) -> list[NodeKind]:
    """Return the kinds of nodes of PARTITIONS that a step means by its names and features of nodes."""
    meant: set[str] = set()
    if resources.nodelist:
        is_a_file = "/" in resources.nodelist
        meant = set() if is_a_file else set(expand_typed("--nodelist", resources.nodelist))
    elif inside:
        meant = set(expand_nodelist(inside.get("SLURM_JOB_NODELIST", "")))
    alternatives = list_feature_sets(resources.constraint)
    return [
        kind
        for kind in client.query_node_kinds(partitions)
        if (not meant or meant & kind.nodes)
        and (alternatives is None or any(features <= kind.features for features in alternatives))
    ]


def _count_devices(node: NodeType) -> int:
    """Return the GPUs and slices of NODE that Slurm gives, virtual ones among them."""
    if node.gpus is None:
        return 0
    return node.gpus.count + sum(node.gpus.mig.values())


def _has_gpu(node: NodeType, word: str) -> bool:
    """Return whether the GPUs of NODE are those that gres.conf calls WORD."""
    if node.gpus is None:
        return False
    if is_slice(word):
        return word in node.gpus.mig
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
