"""What NCCL's own log says of the transport of each pair of ranks: a silent fall-back to sockets is a FAIL."""

from __future__ import annotations

import glob
import os
from typing import TYPE_CHECKING, Any

from hpcstack_smoke.collectives.nccllog import Log, read
from hpcstack_smoke.node.sysfs import active_ports
from hpcstack_smoke.result import FAIL, PASS, WARN, Result, Skip

if TYPE_CHECKING:
    from hpcstack_smoke.context import Context

MOST, DRAWN = 64, 64
REMEDY = {
    "Socket": "NCCL found no way to the HCAs: libibverbs in the image, /dev/infiniband in the container, NCCL_IB_HCA, "
    "NCCL_SOCKET_IFNAME, NCCL_IB_DISABLE; memlock must be unlimited",
    "IB": "load nvidia-peermem or use a kernel with dma-buf; look at ACS and NCCL_NET_GDR_LEVEL",
    "SHM": "no peer access between these GPUs: look at `nvidia-smi topo -p2p r`, ACS and the IOMMU",
}


def lines(output: str) -> list[str]:
    """What NCCL's processes of the newest round wrote: all of them, or the first MOST files of a large run."""
    paths = glob.glob(os.path.join(glob.escape(output), "nccl-*.*"))
    newest = max((os.path.basename(path).partition(".")[0] for path in paths), default="")
    out: list[str] = []
    for path in sorted(one for one in paths if os.path.basename(one).startswith(f"{newest}."))[:MOST]:
        with open(path, errors="replace") as file:
            out += file.readlines()
    return out


def check(context: Context) -> Result:
    """All ranks are connected by the best that the nodes have. One rank reads, and tells the others."""
    if not context.gpu:
        raise Skip("no GPU: NCCL does not run here")
    if context.world < 2:
        raise Skip("one rank: nothing is connected")
    fabric = any(context.all(bool(active_ports())))
    log = read(lines(context.output)) if context.rank == 0 else None
    return judged(context.all(log)[0], context.per_node, fabric=fabric)


def judged(log: Log, per_node: int, *, fabric: bool) -> Result:
    """FABRIC: whether the nodes have an active InfiniBand or RoCE port."""
    if not log.pairs:
        raise Skip("NCCL's log names no connection (NCCL_DEBUG_FILE may be set elsewhere)")
    between = {pair: kinds for pair, kinds in log.pairs.items() if pair[0] // per_node != pair[1] // per_node}
    kinds = log.kinds()
    measured = ", ".join(f"{count} pair(s) by {name}" for name, count in sorted(kinds.items()))
    evidence = f"NCCL {log.version or '?'}, network {log.network or '?'}, HCAs {' '.join(log.hcas) or 'none'}"
    figures = {f"pairs_{name.replace('+', '_')}": float(count) for name, count in kinds.items()}
    more: dict[str, Any] = {"source": "NCCL's own log", "figures": figures, "series": _matrix(log)}
    if log.errors:
        return Result(FAIL, measured, "no completion error", evidence=log.errors[0], remedy=IB_REMEDY, **more)
    if fabric and any("Socket" in found for found in between.values()):
        return Result(FAIL, measured, "no Socket on nodes with InfiniBand or RoCE", evidence=evidence,
                      remedy=REMEDY["Socket"], **more)  # fmt: skip
    plain = {
        name for found in between.values() for name in found if name not in ("P2P", "Socket") and "+GDR" not in name
    }
    if plain:
        return Result(WARN, measured, "GDRDMA on every network line", evidence=evidence, remedy=REMEDY["IB"], **more)
    within = {name for pair, found in log.pairs.items() if pair not in between for name in found}
    if "SHM" in within or "Socket" in within:
        return Result(WARN, measured, "P2P within a node", evidence=evidence, remedy=REMEDY["SHM"], **more)
    direct = any("+GDR" in name for found in between.values() for name in found)
    expected = "P2P within a node, GPUDirect RDMA between" if direct else "P2P within a node; no fabric on these nodes"
    return Result(PASS, measured, expected, evidence=evidence, **more)


IB_REMEDY = (
    "status 12 is a transport retry: look at the cable, the switch's port and the HCA's error counters (nccl #1405)"
)


def _matrix(log: Log) -> list[dict[str, Any]]:
    """Which transport each pair uses, as a table to draw; nothing where it would be too large to read."""
    ranks = sorted({rank for pair in log.pairs for rank in pair})
    if len(ranks) > DRAWN:
        return []
    words = [["+".join(sorted(log.pairs.get((min(a, b), max(a, b)), set()))) for b in ranks] for a in ranks]
    table = {"kind": "words", "name": "transport of each pair of ranks", "values": words}
    return [{**table, "labels": [str(rank) for rank in ranks]}]
