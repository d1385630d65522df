"""Measure all_reduce by rings over several nodes, against the line rate of the nodes' ports.

Tested in tests/unit/suite/test_clusters.py.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from hpcstack_smoke.collectives.bandwidth import MIB, choose_sizes, needs_nccl, sweep_collectives
from hpcstack_smoke.gpu.judge import PEER_GATES
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
    """Measure all_reduce by rings over several nodes, against the line rate of the nodes' ports.

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

    own_line, promised = find_line_rate(context)
    # The slowest node's line. It stays 0, for no verdict, where memory was too small for the size
    # that shows the line, or where some node's own GPUs may be the bottleneck
    line = 0.0
    if wanted in sizes:  # the same on all ranks: `all` waits for every rank
        line = min(context.all(own_line if within_is_faster(context) else 0.0))
    return judge_ring(result, line, context.request.fabric, promised=promised)


def count_ring(nodes: int) -> int:
    """Return the bytes at which a ring over NODES shows the line rate; 0 where they are too many.

    A ring over more nodes has more steps, each with NCCL's latency (14 us between nodes). At this
    size they weigh as much as between two nodes at 1 GiB.
    """
    size = RING_SIZE
    while size < RING_SIZE * nodes / 2:
        size *= 2
    return size if size <= RING_MOST else 0


def within_is_faster(context: Context) -> bool:
    """Return whether the GPUs of a node reach each other faster than the network.

    They do where the site or a table says that they have NVLink. A node with one rank counts too:
    nothing is sent within it.
    """
    name = context.gpu_name().removeprefix("NVIDIA ")
    return context.request.nvlink or name in LINKS or name in PEER_GATES or context.per_node == 1


def find_line_rate(context: Context) -> tuple[float, bool]:
    """Return (GB/s that this node's ports carry for the GPUs in use, whether the site promises it).

    The rate is 0 where the ports are plain network cards. Where the step has only some of the
    node's GPUs, it is their share of the ports.
    """
    from hpcstack_smoke.node import sysfs

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


def judge_ring(result: Result, line: float, kind: str = "", *, promised: bool) -> Result:
    """Return RESULT with its verdict: its best bus bandwidth against a share of LINE.

    LINE is the GB/s of a node's ports; with 0, RESULT is returned as it is. KIND is the site's kind
    of fabric. Too slow is a FAIL where the site PROMISES the line, and the share is known for KIND;
    else it is a WARN.
    """
    values = {name: value for name, value in result.figures.items() if name.endswith("_busbw_GB_s")}
    if not values or not line:
        return result

    best = max(values.values())
    share = LINE_SHARE if kind in SOURCED else OTHERS_SHARE
    want = share * line
    status = PASS
    remedy = ""
    if best < want:
        status = FAIL if promised and kind in SOURCED else WARN
        remedy = (
            "nccl.transport shows the transport, and nccl.pairs or hpcstack test --sweep the slow "
            "node; check fabric.rate, ACS, PCIe"
        )
    origin = "in site.yaml" if promised else "of its ports"
    return replace(
        result,
        status=status,
        expected=f">= {want:.3g} GB/s",
        source=f"{share:.0%} of {line:g} GB/s, the line rate {origin}; nccl-tests #290",
        series=[{**one, "gate": want} for one in result.series],
        figures={**result.figures, "line_share": round(best / line, 3)},
        remedy=remedy,
    )
