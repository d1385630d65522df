"""Measure copies between host and GPU, and between each two GPUs of a node.

gpu/judge.py judges them.

Tested in ci/one_gpu.py.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from hpcstack_smoke.gpu import load
from hpcstack_smoke.gpu.judge import judge_host, judge_peers
from hpcstack_smoke.gpu.single import needs_gpu, time_on_gpu
from hpcstack_smoke.node.nvlink import read_pair_term
from hpcstack_smoke.result import Skip

if TYPE_CHECKING:
    from hpcstack_smoke.context import Context
    from hpcstack_smoke.result import Result

# Seconds of copies while nvidia-smi is asked about the link
LOADED_S = 1.5


def check_node_copies(context: Context) -> Result:
    """Measure copies from pinned host memory to the GPU and back.

    The GPUs of a node take turns, as they share sockets and PCIe switches.
    """
    import torch.distributed as dist

    from hpcstack_smoke.collectives.exact import on_cpu

    needs_gpu(context)
    found: tuple[float, float, list[dict[str, str]]] = (0.0, 0.0, [])
    with on_cpu(context) as (_, group), load.run_near_gpu(context):
        for turn in range(context.per_node):
            dist.barrier(group=group)
            if turn == context.local_rank:
                found = _measure_host_copies(context)
        dist.barrier(group=group)
    there, back, rows = found
    return judge_host(there, back, rows, context.gpu_name())


def _measure_host_copies(context: Context) -> tuple[float, float, list[dict[str, str]]]:
    """Return (GB/s to the GPU, GB/s back, what nvidia-smi said of the GPU during copies to it)."""
    pinned = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(1 << 28, dtype=torch.uint8, device=context.device)
    there = pinned.numel() / time_on_gpu(lambda: device.copy_(pinned, non_blocking=True), 5) / 1e9
    back = pinned.numel() / time_on_gpu(lambda: pinned.copy_(device, non_blocking=True), 5) / 1e9

    def work() -> None:
        device.copy_(pinned, non_blocking=True)
        torch.cuda.synchronize()

    samples = [load.find_own_row(context, rows) for rows in load.sample_load(work, LOADED_S)]
    return there, back, [row for row in samples if row]


def check_node_p2p(context: Context) -> Result:
    """Measure copies between each two GPUs of the node, one after another, and compare the values.

    The first local rank does it for its node.
    """
    import torch.distributed as dist

    from hpcstack_smoke.collectives.exact import on_cpu

    needs_gpu(context)
    count = torch.cuda.device_count()
    mine: Any = None
    if context.local_rank == 0 and count > 1:
        mine = _measure_peer_copies(count)
    torch.cuda.set_device(context.device)
    everyone: list[Any] = [None] * context.world
    # By gloo: a rank that waits by NCCL would keep the GPU busy that is being measured
    with on_cpu(context) as (_, group):
        dist.all_gather_object(everyone, mine, group=group)
    if not any(everyone):
        raise Skip("one GPU")

    # What the first rank of this node has measured
    table, wrong, busy = everyone[context.rank - context.local_rank] or ([[0.0]], [], "")
    if busy:
        raise Skip(f"other processes have GPUs of this node to themselves: {busy}")
    return judge_peers(
        table,
        wrong,
        context.gpu_name(),
        board=context.request.node_gpus,
        nvlink=read_pair_term(),
    )


def _measure_peer_copies(count: int) -> tuple[list[list[float]], list[str], str]:
    """Measure copies between COUNT GPUs.

    Return (GB/s from each to each, which copies were wrong, why it could not be done).
    """
    table = [[0.0] * count for _ in range(count)]
    wrong = []
    try:
        for a in range(count):
            for b in range(count):
                if a == b:
                    continue
                table[a][b], right = _copy_to_peer(a, b)
                if not right:
                    wrong.append(f"{a}->{b}")
    except RuntimeError as error:
        # In the compute mode EXCLUSIVE_PROCESS a GPU that another rank uses cannot be opened
        if "busy" not in str(error):
            raise
        return table, wrong, str(error).splitlines()[0]
    return table, wrong, ""


def _copy_to_peer(a: int, b: int) -> tuple[float, bool]:
    """Copy from GPU A to GPU B. Return (GB/s, whether the values were right)."""
    source = torch.arange(1 << 27, device=f"cuda:{a}", dtype=torch.float32)
    target = torch.zeros_like(source, device=f"cuda:{b}")
    target.copy_(source)
    torch.cuda.synchronize(a)
    began = time.perf_counter()
    for _ in range(5):
        target.copy_(source, non_blocking=True)
    torch.cuda.synchronize(a)
    torch.cuda.synchronize(b)
    took = (time.perf_counter() - began) / 5
    right = bool((target == source.to(target.device)).all())
    return round(source.numel() * 4 / took / 1e9, 1), right
