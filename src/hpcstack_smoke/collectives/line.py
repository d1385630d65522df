"""Measure all_reduce by rings over several nodes, against what ports and NVLink let through.

Tested in tests/unit/suite/test_clusters.py.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from hpcstack_smoke.collectives.bandwidth import MIB, choose_sizes, needs_nccl, sweep_collectives
from hpcstack_smoke.gpu.judge import PEER_GATES
from hpcstack_smoke.limits import Limit, Term, limit_ring, make_ring_term
from hpcstack_smoke.node import nvidia, nvlink, sysfs
from hpcstack_smoke.node.nvlink import LINKS
from hpcstack_smoke.result import FAIL, PASS, WARN, Result, Skip

if TYPE_CHECKING:
    from hpcstack_smoke.context import Context

# Bytes of the ring's all_reduce: over two nodes, and the most over any number. More nodes mean more
# steps, whose latency weighs more (`count_ring`)
RING_SIZE, RING_MOST = 1024 * MIB, 32768 * MIB
# The share of the line rate that a ring must reach, on the fabrics SOURCED and on others. Source:
# nccl-tests #290, 46 to 48 of an NDR port's 50 GB/s. For others no source says what is healthy
LINE_SHARE, OTHERS_SHARE = 0.85, 0.5
SOURCED = ("", "infiniband", "roce")  # "": the site names no kind


def check_nccl_ring(context: Context) -> Result:
    """Measure all_reduce by rings over several nodes, against what ports and NVLink let through.

    NCCL_ALGO is set for this. A tree over two nodes would send less between them, so its bus
    bandwidth says nothing about the line.
    """
    import torch
    import torch.distributed as dist

    from hpcstack_smoke.collectives.domain import find_domain_of_node

    needs_nccl(context)
    if context.nodes < 2:
        raise Skip("one node: nothing goes over the network")
    domains = set(context.all(find_domain_of_node()))
    if len(domains) == 1 and domains != {""}:
        raise Skip("all nodes are in one NVLink domain")

    before = os.environ.get("NCCL_ALGO")
    os.environ["NCCL_ALGO"] = "Ring"
    try:
        # A group of its own: NCCL reads NCCL_ALGO when a communicator is made
        group = dist.new_group()
        # Most sizes need free memory for three buffers. WANTED needs it for little more than one:
        # all_reduce works in place
        wanted = count_ring(context.nodes)
        sizes = choose_sizes(context, tuple(sorted({RING_SIZE, wanted or RING_SIZE})), (wanted,))
        result = sweep_collectives(context, group, ("all_reduce",), sizes, (torch.float32,))
        dist.destroy_process_group(group)
    finally:
        if before is None:
            os.environ.pop("NCCL_ALGO")
        else:
            os.environ["NCCL_ALGO"] = before

    own_limit, promised = find_ring_limit(context)
    # The slowest node's limit. It stays None, for no verdict, where memory was too small for the
    # size that shows it, or where some node's limit is not known
    limit = None
    if wanted in sizes:  # the same on all ranks: `all` waits for every rank
        limits = context.all(own_limit)
        known = [one for one in limits if one is not None]
        if len(known) == len(limits):
            limit = min(known, key=lambda one: one.rate)
    return judge_ring(result, limit, context.request.fabric, promised=promised)


def count_ring(nodes: int) -> int:
    """Return the bytes at which a ring over NODES shows the line rate; 0 where they are too many.

    A ring over more nodes has more steps, each with NCCL's latency (14 us between nodes). At this
    size they weigh as much as between two nodes at 1 GiB.
    """
    size = RING_SIZE
    while size < RING_SIZE * nodes / 2:
        size *= 2
    return size if size <= RING_MOST else 0


def find_ring_limit(context: Context) -> tuple[Limit | None, bool]:
    """Return (what a ring over nodes can reach, as this node sees it; whether it is promised).

    None where that is not known: the ports are plain network cards, or how the node's GPUs reach
    each other is neither read nor told. It is promised where the site says what the ports carry,
    and NVLink's part was read.
    """
    rate, promised = find_line_rate(context)
    if not rate:
        return None, False

    origin = "site.yaml" if promised else "sysfs"
    ports = Term("the ports", rate, f"{origin}: the line rate of the ports")
    if context.per_node == 1:
        return limit_ring(ports, None), promised  # nothing is sent within the node

    mesh = nvlink.read_mesh()
    rows = nvidia.query_gpus(("compute_cap",))
    capability = rows[0].get("compute_cap", "") if rows else ""
    within = make_ring_term(capability, mesh.links)
    if within is not None:
        return limit_ring(ports, within), promised

    # NVLink is there, by the site's word or a table's, and nobody says how much of it
    name = context.gpu_name().removeprefix("NVIDIA ")
    if context.request.nvlink or name in LINKS or name in PEER_GATES:
        return limit_ring(ports, None), False
    return None, False


def find_line_rate(context: Context) -> tuple[float, bool]:
    """Return (GB/s that this node's ports carry for the GPUs in use, whether the site promises it).

    The rate is 0 where the ports are plain network cards. Where the step has only some of the
    node's GPUs, it is their share of the ports.
    """
    request = context.request
    hcas = tuple(request.hcas)
    ports = sysfs.select_fabric_ports(sysfs.list_ports(), request.fabric, hcas)
    active = [port for port in ports if port.active]
    if request.fabric == "ethernet" or sysfs.are_only_cards(active, request.fabric, hcas):
        return 0.0, False

    share = 1.0
    if request.node_gpus:
        share = min(1.0, context.per_node / request.node_gpus)
    if request.hcas and request.fabric_rate:
        return request.fabric_rate * len(request.hcas) / 8 * share, True
    return sum(port.rate for port in active) / 8 * share, False


def judge_ring(result: Result, limit: Limit | None, kind: str = "", *, promised: bool) -> Result:
    """Return RESULT with its verdict: its best bus bandwidth against a share of LIMIT.

    Without a LIMIT, RESULT is returned as it is. KIND is the site's kind of fabric. Too slow is a
    FAIL where the site PROMISES what the ports carry and the share is known for KIND; where NVLink
    is narrower than they are, only below half of it. Else it is a WARN.
    """
    values = {name: value for name, value in result.figures.items() if name.endswith("_busbw_GB_s")}
    if not values or limit is None:
        return result

    best = max(values.values())
    share = LINE_SHARE if kind in SOURCED else OTHERS_SHARE
    want = share * limit.rate
    # What NVLink lets a ring reach is NCCL's reckoning: only half of it is a fault for certain
    ports_are_narrowest = limit.narrowest is limit.terms[0]
    demanded = want if ports_are_narrowest else OTHERS_SHARE * limit.rate
    status = PASS
    remedy = ""
    if best < want:
        status = FAIL if promised and kind in SOURCED and best < demanded else WARN
        remedy = (
            "nccl.transport shows the transport, and nccl.pairs or hpcstack test --sweep the slow "
            "node; check fabric.rate, ACS, PCIe"
        )
    said = [limit.describe()]
    if limit.name_bottleneck():
        said.append(limit.name_bottleneck())
    return replace(
        result,
        status=status,
        expected=f">= {want:.3g} GB/s, {share:.0%} of {limit.rate:.3g}",
        source=f"{'; '.join(said)} ({limit.name_sources()}; nccl-tests #290)",
        series=[{**one, "gate": want} for one in result.series],
        figures={**result.figures, "line_share": round(best / limit.rate, 3)},
        remedy=remedy,
    )
