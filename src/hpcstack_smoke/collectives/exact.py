"""Check that the collectives are exact.

Every value is an integer that the dtype represents exactly, so results are compared with ==.

Tested in tests/integration/test_chain.py and tests/integration/test_smoke.py.
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any

from hpcstack_smoke.result import Result, Skip, judge_result

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcstack_smoke.context import Context

# Values of a rank's buffer, and the least that a rank gets of a buffer that is dealt to all
COUNT, PER_RANK = 4096, 8
# How an older gloo refuses a collective that it lacks
REFUSALS = ("does not support", "unsupported", "not supported", "not implemented")
NAMES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "send_recv",
    "gather",
    "scatter",
)


def check_ddp_placement(context: Context) -> Result:
    """Check that ranks are on as many hosts as the step has nodes.

    Without this check, a launcher that put them all on one node would pass everything else there.
    """
    hosts = sorted(set(context.all(socket.gethostname())))
    measured = f"{context.world} ranks on {len(hosts)} host(s)"
    if len(hosts) <= 8:
        measured += f": {', '.join(hosts)}"
    want = context.step_nodes or context.nodes
    remedy = "the launcher started ranks on the wrong hosts: check --ntasks-per-node"
    return judge_result(
        len(hosts) == want, measured, f"{want} host(s)", "the step's nodes", remedy=remedy
    )


def count_share(world: int) -> int:
    """Return how many values each of WORLD ranks gets of a buffer that is dealt to all.

    It is never 0, however many ranks there are.
    """
    return max(COUNT // world, PER_RANK)


def make_moved(context: Context, rank: int, dtype: Any, count: int = COUNT, start: int = 0) -> Any:
    """Return COUNT values of RANK for a collective that only moves data.

    They are integers up to 255, which bf16 represents exactly. They depend on the rank and on the
    position, which begins at START.
    """
    import torch

    positions = torch.arange(start, start + count, device=context.device)
    return ((positions * 7 + rank * 13) % 256).to(dtype)


def make_summed(context: Context, rank: int, dtype: Any, count: int = COUNT) -> Any:
    """Return COUNT values of RANK for a collective that adds.

    At each position at most 128 ranks have a 1 or a 2, the others 0. So sums stay <= 256, which
    bf16 represents exactly, in a world of any size.
    """
    import torch

    # Every so many ranks one has a value, rounded up so that these are 128 at most
    every = -(-context.world // 128)
    turn = torch.arange(count, device=context.device) + rank
    return ((turn % every == 0) * (1 + (turn // every) % 2)).to(dtype)


def compute_total(context: Context, dtype: Any, count: int) -> Any:
    """Return the sum of `make_summed` over all ranks, one rank's values in memory at a time."""
    whole = make_summed(context, 0, dtype, count)
    for rank in range(1, context.world):
        whole += make_summed(context, rank, dtype, count)
    return whole


def _moving_collectives(context: Context, dtype: Any, group: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, function) of the collectives that move data.

    The function runs the collective on GROUP and returns whether its result was right.
    """
    import torch
    import torch.distributed as dist

    rank, world = context.rank, context.world
    mine = make_moved(context, rank, dtype)

    def are_all(out: list[Any]) -> bool:
        return all(
            torch.equal(one, make_moved(context, other, dtype)) for other, one in enumerate(out)
        )

    def all_gather() -> bool:
        out = [torch.empty_like(mine) for _ in range(world)]
        dist.all_gather(out, mine, group=group)
        return are_all(out)

    def broadcast() -> bool:
        sent = mine.clone()
        dist.broadcast(sent, src=world - 1, group=group)
        return torch.equal(sent, make_moved(context, world - 1, dtype))

    def all_to_all() -> bool:
        part = count_share(world)
        out = torch.empty(part * world, device=context.device, dtype=dtype)
        dist.all_to_all_single(out, make_moved(context, rank, dtype, part * world), group=group)
        # Each rank's values at the positions that are dealt to this one
        parts = [make_moved(context, other, dtype, part, rank * part) for other in range(world)]
        return torch.equal(out, torch.cat(parts))

    def send_recv() -> bool:
        got = torch.empty_like(mine)
        after, before = (rank + 1) % world, (rank - 1) % world
        work = [
            dist.P2POp(dist.isend, mine, after, group),
            dist.P2POp(dist.irecv, got, before, group),
        ]
        for one in dist.batch_isend_irecv(work):
            one.wait()
        return torch.equal(got, make_moved(context, before, dtype))

    def gather() -> bool:
        out = None
        if rank == 0:
            out = [torch.empty_like(mine) for _ in range(world)]
        dist.gather(mine, out, dst=0, group=group)
        return out is None or are_all(out)

    def scatter() -> bool:
        got = torch.empty_like(mine)
        sent = None
        if rank == 0:
            sent = [make_moved(context, other, dtype) for other in range(world)]
        dist.scatter(got, sent, src=0, group=group)
        return torch.equal(got, mine)

    yield "all_gather", all_gather
    yield "broadcast", broadcast
    yield "all_to_all", all_to_all
    yield "send_recv", send_recv
    yield "gather", gather
    yield "scatter", scatter


def _adding_collectives(context: Context, dtype: Any, group: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, function) of the collectives that add, as `_moving_collectives` does."""
    import torch
    import torch.distributed as dist

    rank, world = context.rank, context.world
    mine = make_summed(context, rank, dtype)
    whole = compute_total(context, dtype, COUNT)

    def all_reduce() -> bool:
        total = mine.clone()
        dist.all_reduce(total, group=group)
        return torch.equal(total, whole)

    def reduce() -> bool:
        total = mine.clone()
        dist.reduce(total, dst=0, group=group)
        return rank != 0 or torch.equal(total, whole)

    def reduce_scatter() -> bool:
        part = count_share(world)
        out = torch.empty(part, device=context.device, dtype=dtype)
        values = make_summed(context, rank, dtype, part * world)
        dist.reduce_scatter_tensor(out, values, group=group)
        total = compute_total(context, dtype, part * world)
        return torch.equal(out, total[rank * part : (rank + 1) * part])

    yield "all_reduce", all_reduce
    yield "reduce", reduce
    yield "reduce_scatter", reduce_scatter


Tried = tuple[str, str]  # the collective, the dtype's name


def try_collectives(
    context: Context, group: Any = None
) -> tuple[list[Tried], list[Tried], list[Tried]]:
    """Run nine collectives in fp32 and bf16. Return (right, wrong, those that the backend lacks).

    Only gloo may lack one. What NCCL refuses is raised.
    """
    import torch

    right: list[Tried] = []
    wrong: list[Tried] = []
    lacking: list[Tried] = []
    for dtype in (torch.float32, torch.bfloat16):
        for make in (_moving_collectives, _adding_collectives):
            for name, work in make(context, dtype, group):
                tried = (name, str(dtype).removeprefix("torch."))
                try:
                    is_right = work()
                except (RuntimeError, NotImplementedError, ValueError) as error:
                    if context.backend != "gloo" or not _is_refusal(error):
                        raise
                    lacking.append(tried)
                    continue
                if is_right:
                    right.append(tried)
                else:
                    wrong.append(tried)
    return right, wrong, lacking


def _is_refusal(error: Exception) -> bool:
    """Return whether ERROR says that the backend lacks the collective."""
    return any(word in str(error).lower() for word in REFUSALS)


def _list_tried(tried: list[Tried]) -> str:
    return ", ".join(f"{name} in {dtype}" for name, dtype in tried)


def _judge_collectives(context: Context, group: Any, remedy: str = "") -> Result:
    """Run the collectives on GROUP and judge them. REMEDY: what to do about wrong ones.

    gloo needs to have only all_reduce, all_gather and broadcast; NCCL needs to have all nine.
    """
    right, wrong, lacking = try_collectives(context, group)
    measured = f"{len(right)} of {2 * len(NAMES)} (collective, dtype) exact"
    if wrong:
        measured = f"wrong: {_list_tried(wrong)}"
    evidence = ""
    if lacking:
        evidence = f"not in this version of the backend: {_list_tried(lacking)}"

    complete = len(right) == 2 * len(NAMES)
    if context.backend == "gloo":
        needed = {
            (name, dtype)
            for name in ("all_reduce", "all_gather", "broadcast")
            for dtype in ("float32", "bfloat16")
        }
        complete = needed <= set(right)
    return judge_result(
        complete and not wrong,
        f"{measured}, {context.world} ranks",
        "each value as computed",
        "integers that the dtype represents exactly",
        evidence,
        remedy,
    )


def check_nccl_exact(context: Context) -> Result:
    """Check nine collectives by NCCL."""
    if not context.gpu or context.backend != "nccl":
        raise Skip("no GPU: NCCL does not run here")
    if context.world < 2:
        raise Skip("one rank: nothing is communicated")
    remedy = "run nccl-tests with -c 1 on these nodes, and nccl.pairs to find the faulty one"
    return _judge_collectives(context, None, remedy)


def check_nccl_gloo(context: Context) -> Result:
    """Check nine collectives by gloo on the CPU. This says nothing about NCCL."""
    if context.world < 2:
        raise Skip("one rank: nothing is communicated")
    remedy = "gloo uses TCP: check GLOO_SOCKET_IFNAME and the nodes' addresses"
    with on_cpu(context) as (alike, group):
        return _judge_collectives(alike, group, remedy)


@contextlib.contextmanager
def on_cpu(context: Context) -> Iterator[tuple[Context, Any]]:
    """Yield (the same ranks as a Context on the CPU, a gloo group of them).

    Where the default group is gloo's already, it is None, which means that group. Else a group is
    made here and destroyed afterwards.
    """
    from dataclasses import replace

    import torch
    import torch.distributed as dist

    if context.backend == "gloo" and not context.gpu:
        yield context, None
        return
    group = dist.new_group(backend="gloo")
    try:
        yield replace(context, backend="gloo", gpu=False, device=torch.device("cpu")), group
    finally:
        dist.destroy_process_group(group)
