"""Strong and weak scaling of data-parallel training: S(n) = T(1) / T(n), E(n) = S(n) / n, T of the
slowest rank.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hpcstack_smoke.result import PASS, Result, Skip
from hpcstack_smoke.training import task

if TYPE_CHECKING:
    from hpcstack_smoke.context import Context

WIDE, ROWS, STEPS = 512, 256, 6
GPU_WIDE, GPU_ROWS, GPU_STEPS = 4096, 4096, 20


def list_counts(world: int) -> list[int]:
    """1, 2, 4, ... and WORLD."""
    out = [1]
    while out[-1] * 2 < world:
        out.append(out[-1] * 2)
    return [*out, world] if world > 1 else out


def time_step(context: Context, group: Any, members: int, rows: int) -> float:
    """Seconds of a step on MEMBERS ranks with ROWS rows each: the median over steps of the slowest
    rank.
    """
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    wide = GPU_WIDE if context.gpu else WIDE
    times = [0.0]
    if context.rank < members:
        torch.manual_seed(task.SEED)
        network: Any = nn.Sequential(nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, wide)).to(
            context.device
        )
        ids = [context.device] if context.gpu else None
        around = (
            DistributedDataParallel(network, device_ids=ids, process_group=group)
            if members > 1
            else network
        )
        optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
        x = torch.randn(rows, wide, device=context.device)
        times = [
            _step(context, around, optimizer, x)
            for _ in range(3 + (GPU_STEPS if context.gpu else STEPS))
        ][3:]
    slowest = torch.tensor([statistics.median(times)], device=context.device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest)


def _step(context: Context, around: Any, optimizer: Any, x: Any) -> float:
    began = time.perf_counter()
    loss = around(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if context.gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _measured(context: Context, *, weak: bool) -> Result:
    import torch.distributed as dist

    if context.world < 2:
        raise Skip("one rank: nothing to compare")
    whole = GPU_ROWS if context.gpu else ROWS
    took = {}
    for members in list_counts(context.world):
        group = dist.new_group(list(range(members)))
        took[members] = time_step(context, group, members, whole if weak else whole // members)
        context.all(0)
        if context.rank < members:
            dist.destroy_process_group(group)
    speedup = {n: took[1] / t * (n if weak else 1) for n, t in took.items()}
    efficiency = {n: value / n for n, value in speedup.items()}
    note = context.note()
    last = context.world
    measured = (
        f"S({last}) = {speedup[last]:.2f}, E({last}) = "
        f"{efficiency[last]:.2f}{'; ' + note if note else ''}"
    )
    name = "weak" if weak else "strong"
    series = [
        {
            "name": f"{name}: speed-up",
            "x": list(speedup),
            "y": [round(one, 3) for one in speedup.values()],
            "x_unit": "ranks",
            "y_unit": "S(n)",
            "ideal": [float(n) for n in speedup],
        },
        {
            "name": f"{name}: efficiency",
            "x": list(efficiency),
            "y": [round(one, 3) for one in efficiency.values()],
            "x_unit": "ranks",
            "y_unit": "E(n)",
        },
    ]
    return Result(
        PASS,
        measured,
        "no gate",
        evidence=", ".join(f"T({n}) = {t * 1e3:.1f} ms" for n, t in took.items()),
        figures={"efficiency": round(efficiency[last], 4), "speedup": round(speedup[last], 4)},
        series=series,
        informational=bool(note),
    )


def strong(context: Context) -> Result:
    """The same rows over more ranks."""
    return _measured(context, weak=False)


def weak(context: Context) -> Result:
    """As many rows on each rank however many there are."""
    return _measured(context, weak=True)
