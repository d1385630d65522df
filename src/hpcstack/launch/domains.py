"""Share a job out among NVLink domains: how many of its nodes stand in each, and in which order.

On Slurm's topology/block, `--segment=S` gives a job parts of S nodes, each within one block
(https://slurm.schedmd.com/srun.html). Slurm wants S to divide the job's nodes, and refuses what it
can never place in words that name neither (`Requested node configuration is not available`, seen on
24.11.5). So it is worked out here, before Slurm is asked.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError, format_count
from hpcstack.launch.node_types import find_node_type
from hpcstack.runtimes.base import Part, make_option
from hpcstack.slurm.client import Client
from hpcstack.slurm.nodelist import NodelistError, expand_nodelist

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcstack.core.process import Runner
    from hpcstack.launch.resources import Resources
    from hpcstack.site.load import NodeType, Site
    from hpcstack.slurm.topology import Block

# Slurm's own variables for --segment, from 25.05 on
SEGMENT_VARIABLES = ("SALLOC_SEGMENT_SIZE", "SBATCH_SEGMENT_SIZE", "SRUN_SEGMENT_SIZE")


@dataclass(frozen=True)
class Placement:
    """How a job is shared out among NVLink domains.

    `segment` is the option that asks Slurm for it; None where nothing is asked for. `warning` says
    what could be had better, and `refusal` what Slurm can never place. With `spans`, the nodes lie
    in several domains, so their order matters.
    """

    segment: Part | None = None
    warning: str = ""
    refusal: InputError | None = None
    spans: bool = False


@dataclass(frozen=True)
class Domains:
    """The NVLink domains that a job may use.

    `most` is how many nodes of one the job may have, `rooms` how many nodes of its partition each
    domain has.
    """

    most: int
    rooms: tuple[int, ...]

    @property
    def nodes(self) -> int:
        """The nodes of all domains together."""
        return sum(self.rooms)

    def has_room(self, nodes: int, segment: int) -> bool:
        """Return whether NODES in parts of SEGMENT have room, if all nodes are free."""
        parts = sum(room // segment for room in self.rooms)
        return parts * segment >= nodes


def place_job(resources: Resources, site: Site, runner: Runner) -> Placement:
    """Return how a job of RESOURCES at SITE, of its own, is shared out among NVLink domains.

    Raise InputError for a --segment that Slurm can never place.
    """
    client = Client(runner)
    node = find_node_type(resources, site, {}, client)
    placement = place_nodes(resources, 0, node, {}, client)
    if placement.refusal:
        raise placement.refusal
    return placement


def place_nodes(
    resources: Resources,
    spare: int,
    node: NodeType | None,
    allocation: Mapping[str, str],
    client: Client,
    *,
    may_lose_nodes: bool = False,
) -> Placement:
    """Return how the step of RESOURCES, with SPARE nodes more, is shared out among NVLink domains.

    NODE is their type. Slurm is asked only where it names domains of several nodes, or where the
    user gives --segment. Inside an ALLOCATION the nodes are fixed, and only their order is left. A
    job that MAY_LOSE_NODES starts again without those that failed.
    """
    nodes = resources.nodes + spare
    domain = node.gpus.domain_nodes if node and node.gpus else 0
    asked = resources.extra.value("--segment")
    is_of_interest = nodes > 1 and (domain > 1 or asked.isdecimal())
    # Slurm has no segments of nodes that are named, or of MIN to MAX nodes.
    if not is_of_interest or resources.nodelist or resources.elastic or resources.most_nodes:
        return Placement()
    try:
        return _place_in_domains(
            resources, nodes, spare, domain, allocation, client, may_lose_nodes
        )
    except NodelistError as error:
        return Placement(warning=f"{error.message}, so no --segment is asked for")


def _place_in_domains(
    resources: Resources,
    nodes: int,
    spare: int,
    domain: int,
    allocation: Mapping[str, str],
    client: Client,
    may_lose_nodes: bool,
) -> Placement:
    """Return how NODES, SPARE among them, are shared out; DOMAIN is how many one should have.

    Raise NodelistError where Slurm's answers are not understood.
    """
    asked = resources.extra.value("--segment")
    blocks = client.query_blocks()
    if not blocks:
        return Placement()
    if allocation:
        of_the_job = set(expand_nodelist(allocation.get("SLURM_JOB_NODELIST", "")))
        return Placement(spans=sum(bool(block.nodes & of_the_job) for block in blocks) > 1)

    usable = client.query_partition_nodes(resources.partition)
    usable -= set(expand_nodelist(resources.extra.value("--exclude")))
    domains = _find_domains(domain, blocks, usable)
    if not domains.rooms:
        return Placement()  # the partition has none of the nodes that Slurm has in blocks
    spans = nodes > domains.most
    if asked:
        segment = int(asked) if asked.isdecimal() else 0
        return Placement(
            refusal=_refuse_segment(segment, nodes, domains), spans=spans or 0 < segment < nodes
        )

    # Which nodes are left then, Slurm alone knows, or nobody yet: a part might find no room.
    is_open = resources.constraint or resources.reservation or "," in resources.partition
    is_asked_elsewhere = any(name in os.environ for name in SEGMENT_VARIABLES)
    if is_open or is_asked_elsewhere or may_lose_nodes:
        return Placement(spans=spans)

    segment = choose_segment(nodes, domains)
    if not segment:
        return Placement(warning=_describe_misfit(nodes, spare, domains), spans=spans)
    return Placement(
        segment=make_option("--segment", segment, _explain_segment(nodes, segment, domains)),
        spans=segment < nodes,
    )


def _find_domains(domain: int, blocks: Sequence[Block], partition: frozenset[str]) -> Domains:
    """Return the NVLink domains that are BLOCKS of Slurm's with nodes of PARTITION.

    DOMAIN is how many nodes the site says a domain has; 0 where it does not. Slurm may plan with
    fewer (BlockSizes), and the partition may have fewer of each.
    """
    counted = [len(block.nodes & partition) for block in blocks]
    sizes = [max(counted, default=0), *(block.size for block in blocks)]
    if domain > 1:
        sizes.append(domain)
    return Domains(min(sizes), tuple(room for room in counted if room))


def choose_segment(nodes: int, domains: Domains) -> int:
    """Return how many of NODES each of DOMAINS should have; 0 where no number is good.

    It is the largest number that divides NODES, fits into a domain, and has room in enough of them.
    A number below half a domain is not good: the job would be spread over twice as many domains as
    it needs, and Slurm does better without one.
    """
    largest = min(nodes, domains.most)
    smallest = (largest + 1) // 2
    for segment in range(largest, smallest - 1, -1):
        if nodes % segment == 0 and segment > 1 and domains.has_room(nodes, segment):
            return segment
    return 0


def _explain_segment(nodes: int, segment: int, domains: Domains) -> str:
    """Return why SEGMENT was chosen for NODES."""
    if segment == nodes:
        return "all nodes in one NVLink domain"
    parts = nodes // segment
    return (
        f"{parts} parts of {segment} nodes, each in one NVLink domain, of which a job may have "
        f"{domains.most} nodes"
    )


def _describe_misfit(nodes: int, spare: int, domains: Domains) -> str:
    """Return that NODES, SPARE among them, cannot be shared out evenly, and which numbers can."""
    to_spare = f", {spare} of them to spare," if spare else ""
    fewer = next((n for n in range(nodes - 1, 1, -1) if choose_segment(n, domains)), 0)
    more = next((n for n in range(nodes + 1, domains.nodes + 1) if choose_segment(n, domains)), 0)
    better = [_describe_fit(n, domains) for n in (fewer, more) if n]
    said = (
        f"{nodes} nodes{to_spare} cannot be shared out evenly among NVLink domains of "
        f"{domains.most} nodes, and no --segment is asked for"
    )
    if better:
        said += f"; {' or '.join(better)} can"
    return said


def _describe_fit(nodes: int, domains: Domains) -> str:
    """Return e.g. `36 (2 x 18)`."""
    segment = choose_segment(nodes, domains)
    if segment == nodes:
        return f"{nodes} (one domain)"
    return f"{nodes} ({nodes // segment} x {segment})"


def _refuse_segment(segment: int, nodes: int, domains: Domains) -> InputError | None:
    """Return why Slurm can never give NODES in parts of SEGMENT, which is 0 for no parts.

    None where it can, or nobody knows: newer releases ignore a part larger than the job, and may
    join blocks for one larger than a domain.
    """
    if segment < 1 or segment > min(nodes, domains.most):
        return None
    chosen = choose_segment(nodes, domains)
    hint = "leave it out"
    if chosen:
        hint = f"--segment {chosen}, or leave it out: hpcstack chooses it"
    elif nodes % segment:
        hint = f"-N {nodes // segment * segment}, or leave out --segment"
    if nodes % segment:
        return InputError(
            f"--segment {segment}: {nodes} nodes cannot be shared out in parts of {segment}",
            hint,
            page="use-nvlink-domains",
        )
    if not domains.has_room(nodes, segment):
        room = sum(one // segment for one in domains.rooms)
        return InputError(
            f"--segment {segment}: {format_count(nodes // segment, 'part')} of {segment} nodes are "
            f"needed, and the NVLink domains of this partition have room for {room}",
            hint,
            page="use-nvlink-domains",
        )
    return None
