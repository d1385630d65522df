"""Latency and bus bandwidth of the collectives, by nccl-tests' definitions (doc/PERFORMANCE.md,
commit a0b82b2).

algbw = S / t with S the bytes of the whole buffer and t the mean of the ranks' times, as nccl-tests
takes it (common.cu, -a 1); busbw = algbw * factor. 1 GB is 1e9 bytes. On GPUs ten calls are queued
between two events; on CPUs each call is timed behind a barrier.
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
SIZES = {
    "quick": (256 * MIB,),
    "standard": (MIB, 16 * MIB, 256 * MIB, 1024 * MIB),
    "full": (MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB, 4096 * MIB, 8192 * MIB),
}
# where gates are: of all_reduce in fp32 alone, as it takes one buffer and the others three
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
WARM_UP, QUEUED, ROUNDS = 5, 10, 5


def find_factor(name: str, world: int) -> float:
    """busbw / algbw."""
    if name == "all_reduce":
        return 2 * (world - 1) / world
    if name in ("all_gather", "reduce_scatter", "all_to_all"):
        return (world - 1) / world
    return 1.0


def make_call(name: str, size: int, context: Context, group: Any, dtype: Any) -> Callable[[], None]:
    """The collective NAME on a buffer of SIZE bytes (of all ranks together where it gathers or
    scatters).
    """
    import torch
    import torch.distributed as dist

    world, rank = context.world, context.rank
    dealt = name in ("all_gather", "reduce_scatter", "all_to_all")
    count = (
        max(world, size // dtype.itemsize // world * world)
        if dealt
        else max(1, size // dtype.itemsize)
    )
    whole = torch.ones(count, dtype=dtype, device=context.device)
    part = torch.ones(count // world if dealt else 1, dtype=dtype, device=context.device)
    if name == "all_reduce":
        # Zeros stay zeros however often they are added: no call between the calls that are timed
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
    """Seconds of one call: the median over rounds, then the mean of all ranks."""
    import torch
    import torch.distributed as dist

    times = _queued(work, context, group) if context.gpu else _single(work, group)
    total = torch.tensor([statistics.median(times)], dtype=torch.float64, device=context.device)
    dist.all_reduce(total, group=group)
    return float(total) / context.world


def _effort(work: Callable[[], None], context: Context, group: Any) -> tuple[int, int]:
    """(calls in a round, rounds) after the warm-up: fewer where one call is long.

    The same on all ranks.
    """
    import torch
    import torch.distributed as dist

    work()
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    one = torch.tensor([time.perf_counter() - began], device=context.device)
    dist.all_reduce(one, op=dist.ReduceOp.MAX, group=group)
    if float(one) > 0.5:
        return 1, 2
    if float(one) > 0.05:
        return 3, 3
    for _ in range(WARM_UP - 2):
        work()
    return QUEUED, ROUNDS


def _queued(work: Callable[[], None], context: Context, group: Any) -> list[float]:
    import torch
    import torch.distributed as dist

    calls, rounds = _effort(work, context, group)
    out = []
    for _ in range(rounds):
        dist.barrier(group=group)
        torch.cuda.synchronize()
        out.append(time_calls(work, calls))
    return out


def _single(work: Callable[[], None], group: Any) -> list[float]:
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
    """Every collective of NAMES at every one of SIZES bytes (those of MORE by all_reduce in fp32
    alone): busbw.
    """
    figures, series = {}, []
    best = 0.0
    for dtype in dtypes:
        short = str(dtype).removeprefix("torch.")
        for name in names:
            values = []
            own = (
                sizes
                if (name, short) == ("all_reduce", "float32")
                else [one for one in sizes if one not in more]
            )
            for size in own:
                took = time_call(make_call(name, size, context, group, dtype), context, group)
                context.alive()
                values.append(round(size / took * find_factor(name, context.world) / 1e9, 4))
                figures[f"{name}_{short}_{size}_busbw_GB_s"] = values[-1]
            series.append(
                {
                    "name": f"{name} {short}",
                    "x": list(own),
                    "y": values,
                    "x_unit": "bytes",
                    "y_unit": "GB/s",
                }
            )
            best = max(best, values[-1]) if name == "all_reduce" else best
    measured = (
        f"all_reduce {best:.3g} GB/s busbw at {sizes[-1] / MIB:.4g} MiB, {context.world} ranks, "
        f"{context.backend}"
    )
    note = context.note()
    return Result(
        PASS,
        f"{measured}{'; ' + note if note else ''}",
        "no gate for these nodes",
        figures=figures,
        series=series,
        informational=bool(note),
    )


def needs_nccl(context: Context) -> None:
    if not context.gpu or context.backend != "nccl":
        raise Skip("no GPU: NCCL does not run here")
    if context.world < 2:
        raise Skip("one rank: bus bandwidth is 0 by definition")


def nccl(context: Context) -> Result:
    """Bus bandwidth by NCCL; the gate is the host's to know."""
    import torch

    needs_nccl(context)
    names = EVERY if context.tier != "quick" else ("all_reduce",)
    dtypes = (torch.float32, torch.bfloat16) if context.tier != "quick" else (torch.float32,)
    more = GATED[context.tier]
    sizes = choose_sizes(context, tuple(sorted({*SIZES[context.tier], *more})), more)
    return sweep_collectives(context, None, names, sizes, dtypes, more)


def node(context: Context) -> Result:
    """all_reduce within each node, all nodes at once: over the network a node with slow NVLink does
    not show.
    """
    import torch
    import torch.distributed as dist

    needs_nccl(context)
    if context.nodes < 2:
        raise Skip("one node: nccl.bandwidth is about it")
    if context.per_node < 2:
        raise Skip("one rank on each node")
    more = GATED[context.tier]
    sizes = choose_sizes(context, tuple(sorted({1024 * MIB, *more})), more)
    group = group_of_node(context)
    here = replace(context, world=context.per_node, rank=context.local_rank)
    result = sweep_collectives(here, group, ("all_reduce",), sizes, (torch.float32,), more)
    dist.destroy_process_group(group)
    return result


def group_of_node(context: Context) -> Any:
    """The ranks of this node as a group of their own, made by them alone where this torch can
    (since 2.1).
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
    """Those of SIZES for which every rank's GPU has the memory: three buffers, or little over one
    of those in MORE.
    """
    import torch

    free = min(context.all(torch.cuda.mem_get_info()[0]))
    return tuple(size for size in sizes if size * (1.2 if size in more else 3) < free)


def gloo(context: Context) -> Result:
    """The same by gloo on the CPU: informational."""
    import torch

    if context.world < 2:
        raise Skip("one rank: bus bandwidth is 0 by definition")
    with on_cpu(context) as (alike, group):
        return sweep_collectives(
            alike,
            group,
            ("all_reduce", "all_gather", "broadcast"),
            CPU_SIZES[context.tier],
            (torch.float32,),
        )


def nccl_latency(context: Context) -> Result:
    """Microseconds of a small all_reduce."""
    import torch

    needs_nccl(context)
    values = [
        round(
            time_call(make_call("all_reduce", size, context, None, torch.float32), context, None)
            * 1e6,
            2,
        )
        for size in LATENCY_SIZES
    ]
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
