"""Copies between host and GPU, and between each two GPUs of a node; what they are worth says
gpu/judge.py.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from hpcstack_smoke.gpu import load
from hpcstack_smoke.gpu.judge import judge_host, judge_peers
from hpcstack_smoke.gpu.single import needs_gpu, time_on_gpu
from hpcstack_smoke.result import Skip

if TYPE_CHECKING:
    from hpcstack_smoke.context import Context
    from hpcstack_smoke.result import Result

LOADED_S = 1.5


def host(context: Context) -> Result:
    """Pinned host memory to the GPU and back, one GPU of each node after another: they share
    sockets and switches.
    """
    import torch.distributed as dist

    from hpcstack_smoke.collectives.exact import on_cpu

    needs_gpu(context)
    found: tuple[float, float, list[dict[str, str]]] = (0.0, 0.0, [])
    with on_cpu(context) as (_, group), load.run_near_gpu(context):
        for turn in range(context.per_node):
            dist.barrier(group=group)
            if turn == context.local_rank:
                found = _host_copies(context)
        dist.barrier(group=group)
    there, back, rows = found
    return judge_host(there, back, rows, context.gpu_name())


def _host_copies(context: Context) -> tuple[float, float, list[dict[str, str]]]:
    pinned = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(1 << 28, dtype=torch.uint8, device=context.device)
    there = pinned.numel() / time_on_gpu(lambda: device.copy_(pinned, non_blocking=True), 5) / 1e9
    back = pinned.numel() / time_on_gpu(lambda: pinned.copy_(device, non_blocking=True), 5) / 1e9

    def work() -> None:
        device.copy_(pinned, non_blocking=True)
        torch.cuda.synchronize()

    samples = [load.find_own_row(context, rows) for rows in load.sample_load(work, LOADED_S)]
    return there, back, [row for row in samples if row]


def peers(context: Context) -> Result:
    """Each two GPUs of the node, one after another, by the first local rank: the values, and a
    matrix of GB/s.
    """
    import torch.distributed as dist

    from hpcstack_smoke.collectives.exact import on_cpu

    needs_gpu(context)
    count = torch.cuda.device_count()
    mine: Any = None
    if context.local_rank == 0 and count > 1:
        mine = _copies(count)
    torch.cuda.set_device(context.device)
    everyone: list[Any] = [None] * context.world
    with on_cpu(context) as (
        _,
        group,
    ):  # who waits by NCCL would keep the GPU busy that is measured
        dist.all_gather_object(everyone, mine, group=group)
    if not any(everyone):
        raise Skip("one GPU")
    table, wrong, busy = everyone[context.rank - context.local_rank] or ([[0.0]], [], "")
    if busy:
        raise Skip(f"GPUs that are another process's alone: {busy}")
    name = context.gpu_name()
    return judge_peers(table, wrong, name, board=context.request.node_gpus)


def _copies(count: int) -> tuple[list[list[float]], list[str], str]:
    """(GB/s of each pair, which copies were wrong, why it could not be done)."""
    table, wrong = [[0.0] * count for _ in range(count)], []
    try:
        for a in range(count):
            for b in range(count):
                if a != b:
                    table[a][b], right = _copied(a, b)
                    wrong += [] if right else [f"{a}->{b}"]
    except (
        RuntimeError
    ) as error:  # in the compute mode EXCLUSIVE_PROCESS each GPU is one rank's alone
        if "busy" not in str(error):
            raise
        return table, wrong, str(error).splitlines()[0]
    return table, wrong, ""


def _copied(a: int, b: int) -> tuple[float, bool]:
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
