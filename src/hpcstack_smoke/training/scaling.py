"""Strong and weak scaling of data-parallel training.

T(n) is the time of a step on n ranks, that of the slowest. The speed-up S(n) is T(1) / T(n); in
weak scaling, where n ranks have n times as much work, it is n T(1) / T(n). The efficiency E(n) is
S(n) / n.

Tested in tests/integration/test_chain.py and tests/integration/test_smoke.py.
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

# width of the network, rows of a batch, steps that are measured: on CPUs and on GPUs
WIDE, ROWS, STEPS = 512, 256, 6
GPU_WIDE, GPU_ROWS, GPU_STEPS = 4096, 4096, 20
WARM_UP = 3  # steps before those that are measured


def list_counts(world: int) -> list[int]:
    """Return 1, 2, 4, ... below WORLD, and WORLD."""
    if world <= 1:
        return [1]
    out = [1]
    while out[-1] * 2 < world:
        out.append(out[-1] * 2)
    return [*out, world]


def time_step(context: Context, group: Any, members: int, rows: int) -> float:
    """Return the seconds of a step on the first MEMBERS ranks, with ROWS rows each.

    That is the median over steps, of the slowest rank. GROUP is their process group; ranks beyond
    only take part in the comparison.
    """
    import torch.distributed as dist

    times = [0.0]
    if context.rank < members:
        times = _time_steps(context, group if members > 1 else None, rows)
    slowest = torch.tensor([statistics.median(times)], device=context.device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest)


def _time_steps(context: Context, group: Any, rows: int) -> list[float]:
    """Return the seconds of each step on this rank, with DDP over GROUP; None is no group."""
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(task.SEED)
    wide = GPU_WIDE if context.gpu else WIDE
    layers = nn.Sequential(nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, wide))
    network: Any = layers.to(context.device)
    around = network
    if group is not None:
        ids = [context.device] if context.gpu else None
        around = DistributedDataParallel(network, device_ids=ids, process_group=group)

    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    x = torch.randn(rows, wide, device=context.device)
    steps = GPU_STEPS if context.gpu else STEPS
    times = [_run_step(context, around, optimizer, x) for _ in range(WARM_UP + steps)]
    return times[WARM_UP:]


def _run_step(context: Context, around: Any, optimizer: Any, x: Any) -> float:
    """Run one step and return its seconds."""
    began = time.perf_counter()
    loss = around(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if context.gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _measure_scaling(context: Context, *, weak: bool) -> Result:
    """Measure a step on 1, 2, 4, ... and all ranks. WEAK: each has as many rows as one alone."""
    import torch.distributed as dist

    if context.world < 2:
        raise Skip("one rank: nothing to compare")

    whole = GPU_ROWS if context.gpu else ROWS
    took = {}  # seconds by number of ranks
    for members in list_counts(context.world):
        group = dist.new_group(list(range(members)))
        rows = whole if weak else whole // members
        took[members] = time_step(context, group, members, rows)
        context.all(0)
        if context.rank < members:
            dist.destroy_process_group(group)

    speedup = {}
    efficiency = {}
    for n, seconds in took.items():
        work = n if weak else 1
        speedup[n] = took[1] / seconds * work
        efficiency[n] = speedup[n] / n

    note = context.note()
    last = context.world
    measured = f"S({last}) = {speedup[last]:.2f}, E({last}) = {efficiency[last]:.2f}"
    if note:
        measured += f"; {note}"
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


def check_scaling_strong(context: Context) -> Result:
    """Measure strong scaling: the same rows, split over more and more ranks."""
    return _measure_scaling(context, weak=False)


def check_scaling_weak(context: Context) -> Result:
    """Measure weak scaling: as many rows on each rank, however many ranks there are."""
    return _measure_scaling(context, weak=True)
