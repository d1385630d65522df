"""What a run over several nodes makes of the line: all_reduce by rings, held against what the
nodes' ports carry.
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

RING_SIZE, RING_MOST = (
    1024 * MIB,
    32768 * MIB,
)  # for two nodes; with more the first steps of a ring weigh more
# Of the line rate: nccl-tests #290 has 46 to 48 GB/s of an NDR port's 50. Of other fabrics nobody
# says what is healthy
LINE_SHARE, OTHERS_SHARE, SOURCED = 0.85, 0.5, ("", "infiniband", "roce")


def ring(context: Context) -> Result:
    """all_reduce by rings over several nodes, held against the line rate of the nodes' ports.

    A tree over two nodes sends less between them, and its busbw says nothing of the line.
    """
    import torch
    import torch.distributed as dist

    from hpcstack_smoke.collectives.domain import domain_of_node

    needs_nccl(context)
    if context.nodes < 2:
        raise Skip("one node: nothing goes over the network")
    domains = set(context.all(domain_of_node()))
    if len(domains) == 1 and domains != {""}:
        raise Skip("all nodes are in one NVLink domain")
    before = os.environ.get("NCCL_ALGO")
    os.environ["NCCL_ALGO"] = "Ring"
    try:
        group = dist.new_group()
        want = ring_size(context.nodes)
        sizes = choose_sizes(context, tuple(sorted({RING_SIZE, want or RING_SIZE})), (want,))
        result = sweep_collectives(context, group, ("all_reduce",), sizes, (torch.float32,))
        dist.destroy_process_group(group)
    finally:
        os.environ.pop("NCCL_ALGO") if before is None else os.environ.update(NCCL_ALGO=before)
    line, promised = line_rate(context)
    line = min(context.all(line)) if want in sizes and within_is_faster(context) else 0.0
    return judge_ring(result, line, context.request.fabric, promised=promised)


def ring_size(nodes: int) -> int:
    """Bytes at which a ring over NODES shows the line: NCCL's latencies a step (14 us between
    nodes) weigh as between two at 1 GiB.
    """
    size = RING_SIZE
    while size < RING_SIZE * nodes / 2:
        size *= 2
    return size if size <= RING_MOST else 0


def within_is_faster(context: Context) -> bool:
    """Whether GPUs of a node reach each other faster than the network: by NVLink, or as there is
    but one.
    """
    name = context.gpu_name().removeprefix("NVIDIA ")
    return context.request.nvlink or name in LINKS or name in PEER_GATES or context.per_node == 1


def line_rate(context: Context) -> tuple[float, bool]:
    """(GB/s that the ports of this node carry for the GPUs in use, whether the site promises them)."""
    from hpcstack_smoke.node import sysfs

    request = context.request
    ports = [
        port
        for port in sysfs.of_fabric(sysfs.list_ports(), request.fabric, tuple(request.hcas))
        if port.active
    ]
    share = min(1.0, context.per_node / request.node_gpus) if request.node_gpus else 1.0
    if request.fabric == "ethernet" or sysfs.only_cards(ports, request.fabric, tuple(request.hcas)):
        return 0.0, False
    if request.hcas and request.fabric_rate:
        return request.fabric_rate * len(request.hcas) / 8 * share, True
    return sum(port.rate for port in ports) / 8 * share, False


def judge_ring(result: Result, line: float, kind: str = "", *, promised: bool) -> Result:
    """RESULT with its verdict: below LINE_SHARE of LINE (GB/s of a node's ports) FAILs where the
    site promises them.

    KIND: of the fabric; of Slingshot, EFA and others half of the line only warns.
    """
    values = {name: value for name, value in result.figures.items() if name.endswith("_busbw_GB_s")}
    if not values or not line:
        return result
    best = max(values.values())
    share = LINE_SHARE if kind in SOURCED else OTHERS_SHARE
    want = share * line
    status = PASS
    if best < want:
        status = FAIL if promised and kind in SOURCED else WARN
    series = [{**one, "gate": want} for one in result.series]
    remedy = (
        "nccl.transport says by what; nccl.pairs or hpcstack test --sweep which node; fabric.rate, "
        "ACS, PCIe"
    )
    source = f"{share:.0%} of {line:g} GB/s, the line rate " + (
        "in site.yaml" if promised else "of its ports"
    )
    return replace(
        result,
        status=status,
        expected=f">= {want:.3g} GB/s",
        source=f"{source}; nccl-tests #290",
        series=series,
        figures={**result.figures, "line_share": round(best / line, 3)},
        remedy="" if status == PASS else remedy,
    )
