"""Measure latency and bus bandwidth of the collectives, as nccl-tests defines them.

The definitions are in its doc/PERFORMANCE.md (commit a0b82b2). algbw = S / t, where S is the bytes
of the whole buffer and t the mean of the ranks' times, as nccl-tests takes it (common.cu, -a 1).
busbw = algbw * factor. 1 GB is 1e9 bytes. On GPUs ten calls are queued between two events; on CPUs
each call is timed behind a barrier.

Tested in tests/integration/test_chain.py and tests/integration/test_smoke.py.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hpcstack_smoke.collectives.exact import on_cpu
from hpcstack_smoke.gpu.clock import time_calls
from hpcstack_smoke.result import PASS, Result, Skip

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcstack_smoke.context import Context

MIB = 1 << 20
# Bytes of the buffer, by tier
SIZES = {
    "quick": (256 * MIB,),
    "standard": (MIB, 16 * MIB, 256 * MIB, 1024 * MIB),
    "full": (MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB, 4096 * MIB, 8192 * MIB),
}
# Sizes at which there are gates. They are measured by all_reduce in fp32 alone, which takes one
# buffer where others take up to three.
GATED = {"quick": (), "standard": (8192 * MIB, 16384 * MIB), "full": (16384 * MIB,)}
CPU_SIZES = {
    "quick": (MIB,),
    "standard": (MIB // 16, MIB, 8 * MIB),
    "full": (MIB // 16, MIB, 4 * MIB, 16 * MIB, 64 * MIB),
}
LATENCY_SIZES = (8, 128, 1024, 8192, 65536)
EVERY = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "send_recv",
)
# Calls before the first round; calls in a round; rounds
WARM_UP, QUEUED, ROUNDS = 5, 10, 5


def find_factor(name: str, world: int) -> float:
    """Return busbw / algbw of the collective NAME over WORLD ranks."""
    if name == "all_reduce":
        return 2 * (world - 1) / world
    if name in ("all_gather", "reduce_scatter", "all_to_all"):
        return (world - 1) / world
    return 1.0


def make_call(name: str, size: int, context: Context, group: Any, dtype: Any) -> Callable[[], None]:
    """Return a function that runs the collective NAME on a buffer of SIZE bytes.

    Where the collective gathers, scatters or exchanges parts, SIZE is that of all ranks' parts
    together.
    """
    import torch
    import torch.distributed as dist

    world, rank = context.world, context.rank
    count = max(1, size // dtype.itemsize)
    part_count = 1
    if name in ("all_gather", "reduce_scatter", "all_to_all"):
        # A multiple of the world's size, so that each rank has as much
        count = max(world, size // dtype.itemsize // world * world)
        part_count = count // world
    whole = torch.ones(count, dtype=dtype, device=context.device)
    part = torch.ones(part_count, dtype=dtype, device=context.device)

    if name == "all_reduce":
        # Zeros stay zeros however often they are added, so nothing has to reset the buffer between
        # the calls that are timed
        whole.zero_()
        return lambda: dist.all_reduce(whole, group=group)
    if name == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, part, group=group)
    if name == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(part, whole, group=group)
    if name == "all_to_all":
        other = torch.empty_like(whole)
        return lambda: dist.all_to_all_single(other, whole, group=group)
    if name == "broadcast":
        return lambda: dist.broadcast(whole, src=0, group=group)
    if name == "reduce":
        whole.zero_()
        return lambda: dist.reduce(whole, dst=0, group=group)

    # send_recv: each rank sends to the next one and receives from the one before
    got = torch.empty_like(whole)
    after, before = (rank + 1) % world, (rank - 1) % world

    def ring() -> None:
        work = [
            dist.P2POp(dist.isend, whole, after, group),
            dist.P2POp(dist.irecv, got, before, group),
        ]
        for one in dist.batch_isend_irecv(work):
            one.wait()

    return ring


def time_call(work: Callable[[], None], context: Context, group: Any) -> float:
    """Return the seconds of one call of WORK: the mean over ranks of each rank's median."""
    import torch
    import torch.distributed as dist

    times = _time_on_gpu(work, context, group) if context.gpu else _time_on_cpu(work, group)
    total = torch.tensor([statistics.median(times)], dtype=torch.float64, device=context.device)
    dist.all_reduce(total, group=group)
    return float(total) / context.world


def _choose_effort(work: Callable[[], None], context: Context, group: Any) -> tuple[int, int]:
    """Warm WORK up. Return (calls in a round, rounds), fewer where one call takes long.

    They follow from the slowest rank's time, and so are the same on all ranks.
    """
    import torch
    import torch.distributed as dist

    work()
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    slowest = torch.tensor([time.perf_counter() - began], device=context.device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
    if float(slowest) > 0.5:
        return 1, 2
    if float(slowest) > 0.05:
        return 3, 3
    for _ in range(WARM_UP - 2):
        work()
    return QUEUED, ROUNDS


def _time_on_gpu(work: Callable[[], None], context: Context, group: Any) -> list[float]:
    """Return the seconds of one call of WORK in each round, of calls queued on the GPU."""
    import torch
    import torch.distributed as dist

    calls, rounds = _choose_effort(work, context, group)
    out = []
    for _ in range(rounds):
        dist.barrier(group=group)
        torch.cuda.synchronize()
        out.append(time_calls(work, calls))
    return out


def _time_on_cpu(work: Callable[[], None], group: Any) -> list[float]:
    """Return the seconds of each of ROUNDS calls of WORK, after two that are not counted."""
    import torch.distributed as dist

    out = []
    for number in range(2 + ROUNDS):
        dist.barrier(group=group)
        began = time.perf_counter()
        work()
        if number >= 2:
            out.append(time.perf_counter() - began)
    return out


def sweep_collectives(
    context: Context,
    group: Any,
    names: tuple[str, ...],
    sizes: tuple[int, ...],
    dtypes: tuple[Any, ...],
    more: tuple[int, ...] = (),
) -> Result:
    """Measure the bus bandwidth of each collective of NAMES at each of SIZES (bytes), in DTYPES.

    Those of SIZES that are in MORE are measured by all_reduce in fp32 alone. The Result has no
    verdict: it is a PASS with figures and a series for each collective and dtype.
    """
    figures = {}
    series = []
    best = 0.0
    for dtype in dtypes:
        short = str(dtype).removeprefix("torch.")
        for name in names:
            own = list(sizes)
            if (name, short) != ("all_reduce", "float32"):
                own = [size for size in sizes if size not in more]
            values = []
            for size in own:
                took = time_call(make_call(name, size, context, group, dtype), context, group)
                context.alive()
                factor = find_factor(name, context.world)
                values.append(round(size / took * factor / 1e9, 4))
                figures[f"{name}_{short}_{size}_busbw_GB_s"] = values[-1]
            series.append(
                {
                    "name": f"{name} {short}",
                    "x": own,
                    "y": values,
                    "x_unit": "bytes",
                    "y_unit": "GB/s",
                }
            )
            if name == "all_reduce":
                best = max(best, values[-1])

    measured = (
        f"all_reduce {best:.3g} GB/s busbw at {sizes[-1] / MIB:.4g} MiB, {context.world} ranks, "
        f"{context.backend}"
    )
    note = context.note()
    if note:
        measured += f"; {note}"
    return Result(
        PASS,
        measured,
        "no gate for these nodes",
        figures=figures,
        series=series,
        informational=bool(note),
    )


def needs_nccl(context: Context) -> None:
    """Raise Skip where NCCL does not run, or where one rank has nobody to talk to."""
    if not context.gpu or context.backend != "nccl":
        raise Skip("no GPU: NCCL does not run here")
    if context.world < 2:
        raise Skip("one rank: bus bandwidth is 0 by definition")


def check_nccl_bandwidth(context: Context) -> Result:
    """Measure bus bandwidth by NCCL over all ranks. The gates are applied by the host."""
    import torch

    needs_nccl(context)
    names: tuple[str, ...] = EVERY
    dtypes: tuple[Any, ...] = (torch.float32, torch.bfloat16)
    if context.tier == "quick":
        names = ("all_reduce",)
        dtypes = (torch.float32,)
    more = GATED[context.tier]
    sizes = choose_sizes(context, tuple(sorted({*SIZES[context.tier], *more})), more)
    return sweep_collectives(context, None, names, sizes, dtypes, more)


def check_nccl_node(context: Context) -> Result:
    """Measure all_reduce within each node, on all nodes at once.

    In all_reduce over several nodes the network hides a node whose NVLink is slow.
    """
    import torch
    import torch.distributed as dist

    needs_nccl(context)
    if context.nodes < 2:
        raise Skip("one node: nccl.bandwidth already measures it")
    if context.per_node < 2:
        raise Skip("one rank on each node")

    more = GATED[context.tier]
    sizes = choose_sizes(context, tuple(sorted({1024 * MIB, *more})), more)
    group = find_group_of_node(context)
    here = replace(context, world=context.per_node, rank=context.local_rank)
    result = sweep_collectives(here, group, ("all_reduce",), sizes, (torch.float32,), more)
    dist.destroy_process_group(group)
    return result


def find_group_of_node(context: Context) -> Any:
    """Return a process group of this node's ranks.

    Since torch 2.1 these ranks make it by themselves. Before, all ranks must make each group
    together.
    """
    import torch.distributed as dist

    each = context.per_node
    ranks = [list(range(number * each, (number + 1) * each)) for number in range(context.nodes)]
    mine = ranks[context.rank // each]
    try:
        return dist.new_group(mine, use_local_synchronization=True)
    except TypeError:
        groups = [dist.new_group(one) for one in ranks]
        return groups[context.rank // each]


def choose_sizes(
    context: Context, sizes: tuple[int, ...], more: tuple[int, ...] = ()
) -> tuple[int, ...]:
    """Return those of SIZES (bytes) for which every rank's GPU has enough free memory.

    That is three buffers, or little more than one of those in MORE.
    """
    import torch

    free = min(context.all(torch.cuda.mem_get_info()[0]))
    return tuple(size for size in sizes if size * (1.2 if size in more else 3) < free)


def check_nccl_gloo_bandwidth(context: Context) -> Result:
    """Measure bus bandwidth by gloo on the CPU."""
    import torch

    if context.world < 2:
        raise Skip("one rank: bus bandwidth is 0 by definition")
    names = ("all_reduce", "all_gather", "broadcast")
    sizes = CPU_SIZES[context.tier]
    with on_cpu(context) as (alike, group):
        return sweep_collectives(alike, group, names, sizes, (torch.float32,))


def check_nccl_latency(context: Context) -> Result:
    """Measure the microseconds of a small all_reduce by NCCL."""
    import torch

    needs_nccl(context)
    values = []
    for size in LATENCY_SIZES:
        work = make_call("all_reduce", size, context, None, torch.float32)
        values.append(round(time_call(work, context, None) * 1e6, 2))
    series = [
        {
            "name": "all_reduce",
            "x": list(LATENCY_SIZES),
            "y": values,
            "x_unit": "bytes",
            "y_unit": "us",
        }
    ]
    figures = {f"all_reduce_{size}_us": value for size, value in zip(LATENCY_SIZES, values)}
    return Result(
        PASS,
        f"{values[0]:g} us at 8 bytes, {values[-1]:g} us at 64 KiB",
        "no gate",
        figures=figures,
        series=series,
    )
