"""Checks of the collectives: exactness first, then bandwidth by nccl-tests' definition."""

from __future__ import annotations

import socket
import statistics
import time
from typing import Any

from hpcstack_smoke.context import Context
from hpcstack_smoke.result import WARN, Result, Skip, judge

BYTES = 256 << 20
COUNT = 4096


def placement(context: Context) -> Result:
    """Ranks are on as many hosts as the step has nodes; a launcher that puts all on one passes nothing else off."""
    import torch.distributed as dist

    hosts: list[Any] = [None] * context.world
    dist.all_gather_object(hosts, socket.gethostname())
    distinct = sorted(set(hosts))
    remedy = "the launcher started ranks on the wrong hosts: look at --ntasks-per-node"
    measured = f"{context.world} ranks on {len(distinct)} host(s): {', '.join(distinct)}"
    return judge(len(distinct) == context.nodes, measured, f"{context.nodes} host(s)", "torchrun", remedy=remedy)


def moved(context: Context, rank: int, dtype: Any) -> Any:
    """What is only moved: all integers that bf16 knows exactly up to 255, by position and rank."""
    import torch

    return ((torch.arange(COUNT, device=context.device) * 7 + rank * 13) % 256).to(dtype)


def summed(context: Context, rank: int, dtype: Any) -> Any:
    """What is added: 1 or 2 from at most 128 ranks a position, so that sums stay exact in bf16 (<= 256) at any size."""
    import torch

    every = -(-context.world // 128)
    turn = torch.arange(COUNT, device=context.device) + rank
    return ((turn % every == 0) * (1 + (turn // every) % 2)).to(dtype)


def exact(context: Context) -> list[str]:
    """What was wrong in four collectives, in fp32 and bf16; every value is compared with ==."""
    import torch
    import torch.distributed as dist

    wrong = []
    for dtype in (torch.float32, torch.bfloat16):
        mine = moved(context, context.rank, dtype)
        everyone = [moved(context, rank, dtype) for rank in range(context.world)]
        gathered = [torch.empty_like(mine) for _ in everyone]
        dist.all_gather(gathered, mine)
        sent = mine.clone()
        dist.broadcast(sent, src=context.world - 1)
        total = summed(context, context.rank, dtype)
        reduced = total.clone()
        dist.all_reduce(total)
        dist.reduce(reduced, dst=0)
        whole = torch.stack([summed(context, rank, dtype) for rank in range(context.world)]).sum(0)
        results = {
            "all_reduce": torch.equal(total, whole),
            "all_gather": torch.equal(torch.stack(gathered), torch.stack(everyone)),
            "broadcast": torch.equal(sent, everyone[-1]),
            "reduce": context.rank != 0 or torch.equal(reduced, whole),
        }
        wrong += [f"{name} in {dtype}" for name, right in results.items() if not right]
    return wrong


def gloo(context: Context) -> Result:
    """The collectives on CPU. Says nothing of NCCL: its checks are others."""
    if context.backend != "gloo":
        raise Skip("the process group is NCCL's")
    wrong = exact(context)
    measured = f"wrong: {', '.join(wrong)}" if wrong else "4 collectives in fp32 and bf16 exact"
    return judge(not wrong and context.world > 1, f"{measured}, {context.world} ranks", "exact, 2 ranks or more")


def nccl_exact(context: Context) -> Result:
    """The same collectives by NCCL."""
    if not context.gpu:
        raise Skip("no GPU: NCCL does not run here")
    if context.world < 2:
        raise Skip("one rank: nothing is communicated")
    wrong = exact(context)
    measured = f"wrong: {', '.join(wrong)}" if wrong else "4 collectives in fp32 and bf16 exact"
    return judge(
        not wrong, f"{measured}, {context.world} ranks", "exact", remedy="run nccl-tests with -c 1 on these nodes"
    )


def nccl_bandwidth(context: Context) -> Result:
    """Bus bandwidth of all_reduce, 2 (n - 1) / n * bytes / time; informational: no gate is set."""
    if not context.gpu:
        raise Skip("no GPU: NCCL does not run here")
    if context.world < 2:
        raise Skip("one rank: bus bandwidth is 0 by definition")
    import torch
    import torch.distributed as dist

    data = torch.ones(BYTES // 4, device=context.device)
    times = []
    for number in range(15):
        dist.barrier()
        torch.cuda.synchronize()
        began = time.perf_counter()
        dist.all_reduce(data)
        torch.cuda.synchronize()
        if number >= 5:
            times.append(time.perf_counter() - began)
        data.fill_(1.0)
    slowest = torch.tensor([statistics.median(times)], device=context.device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    busbw = 2 * (context.world - 1) / context.world * BYTES / float(slowest) / 1e9
    return Result(WARN, f"{busbw:.1f} GB/s at 256 MiB, {context.world} ranks", "no gate is set for these nodes yet")
