"""Exactness of the collectives: every value is an integer that the dtype knows, and is compared
with ==.
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any

from hpcstack_smoke.result import Result, Skip, judge_result

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcstack_smoke.context import Context

COUNT, PER_RANK = 4096, 8
UNKNOWN = (
    "does not support",
    "unsupported",
    "not supported",
    "not implemented",
)  # of an older gloo
NAMES = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send_recv", "gather", "scatter",
)  # fmt: skip


def placement(context: Context) -> Result:
    """Ranks are on as many hosts as the step has nodes; a launcher that puts all on one passes
    nothing else off.
    """
    distinct = sorted(set(context.all(socket.gethostname())))
    remedy = "the launcher started ranks on the wrong hosts: look at --ntasks-per-node"
    measured = f"{context.world} ranks on {len(distinct)} host(s)"
    measured += f": {', '.join(distinct)}" if len(distinct) <= 8 else ""
    want = context.step_nodes or context.nodes
    return judge_result(
        len(distinct) == want, measured, f"{want} host(s)", "the step's nodes", remedy=remedy
    )


def shared_out(world: int) -> int:
    """How many values a rank has of what is dealt to all of WORLD: never none, whatever the world's
    size.
    """
    return max(COUNT // world, PER_RANK)


def make_moved(context: Context, rank: int, dtype: Any, count: int = COUNT, start: int = 0) -> Any:
    """What is only moved: integers that bf16 knows exactly (to 255), by position from START and
    rank.
    """
    import torch

    return ((torch.arange(start, start + count, device=context.device) * 7 + rank * 13) % 256).to(
        dtype
    )


def make_summed(context: Context, rank: int, dtype: Any, count: int = COUNT) -> Any:
    """What is added: 1 or 2 from at most 128 ranks a position, so that sums stay exact in bf16 (<=
    256) at any size.
    """
    import torch

    every = -(-context.world // 128)
    turn = torch.arange(count, device=context.device) + rank
    return ((turn % every == 0) * (1 + (turn // every) % 2)).to(dtype)


def total_of(context: Context, dtype: Any, count: int) -> Any:
    """The sum of `make_summed` over all ranks, without a copy of each."""
    whole = make_summed(context, 0, dtype, count)
    for rank in range(1, context.world):
        whole += make_summed(context, rank, dtype, count)
    return whole


def _moving(context: Context, dtype: Any, group: Any) -> Iterator[tuple[str, Any]]:
    """(name, whether it was right, as a function that runs it) of the collectives that move data."""
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
        part = shared_out(world)
        out = torch.empty(part * world, device=context.device, dtype=dtype)
        dist.all_to_all_single(out, make_moved(context, rank, dtype, part * world), group=group)
        right = torch.cat(
            [make_moved(context, other, dtype, part, rank * part) for other in range(world)]
        )
        return torch.equal(out, right)

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
        out = [torch.empty_like(mine) for _ in range(world)] if rank == 0 else None
        dist.gather(mine, out, dst=0, group=group)
        return out is None or are_all(out)

    def scatter() -> bool:
        got = torch.empty_like(mine)
        sent = [make_moved(context, other, dtype) for other in range(world)] if rank == 0 else None
        dist.scatter(got, sent, src=0, group=group)
        return torch.equal(got, mine)

    yield from (
        ("all_gather", all_gather),
        ("broadcast", broadcast),
        ("all_to_all", all_to_all),
        ("send_recv", send_recv),
        ("gather", gather),
        ("scatter", scatter),
    )


def _adding(context: Context, dtype: Any, group: Any) -> Iterator[tuple[str, Any]]:
    """The same of the collectives that add."""
    import torch
    import torch.distributed as dist

    rank, world = context.rank, context.world
    mine = make_summed(context, rank, dtype)
    whole = total_of(context, dtype, COUNT)

    def all_reduce() -> bool:
        total = mine.clone()
        dist.all_reduce(total, group=group)
        return torch.equal(total, whole)

    def reduce() -> bool:
        total = mine.clone()
        dist.reduce(total, dst=0, group=group)
        return rank != 0 or torch.equal(total, whole)

    def reduce_scatter() -> bool:
        part = shared_out(world)
        out = torch.empty(part, device=context.device, dtype=dtype)
        dist.reduce_scatter_tensor(
            out, make_summed(context, rank, dtype, part * world), group=group
        )
        return torch.equal(
            out, total_of(context, dtype, part * world)[rank * part : (rank + 1) * part]
        )

    yield from (("all_reduce", all_reduce), ("reduce", reduce), ("reduce_scatter", reduce_scatter))


Tried = tuple[str, str]  # the collective, the dtype's name


def try_collectives(
    context: Context, group: Any = None
) -> tuple[list[Tried], list[Tried], list[Tried]]:
    """(right, wrong, not known to this backend) of nine collectives in fp32 and bf16."""
    import torch

    right: list[Tried] = []
    wrong: list[Tried] = []
    unknown: list[Tried] = []
    for dtype in (torch.float32, torch.bfloat16):
        for make in (_moving, _adding):
            for name, work in make(context, dtype, group):
                tried = (name, str(dtype).removeprefix("torch."))
                try:
                    (right if work() else wrong).append(tried)
                except (RuntimeError, NotImplementedError, ValueError) as error:
                    if context.backend != "gloo" or not any(
                        word in str(error).lower() for word in UNKNOWN
                    ):
                        raise  # NCCL has all nine: what it refuses is an error
                    unknown.append(tried)
    return right, wrong, unknown


def _named(tried: list[Tried]) -> str:
    return ", ".join(f"{name} in {dtype}" for name, dtype in tried)


def _judged(context: Context, group: Any, remedy: str = "") -> Result:
    right, wrong, unknown = try_collectives(context, group)
    said = (
        f"wrong: {_named(wrong)}"
        if wrong
        else f"{len(right)} of {2 * len(NAMES)} (collective, dtype) exact"
    )
    evidence = f"not in this version of the backend: {_named(unknown)}" if unknown else ""
    needed = {
        (name, dtype)
        for name in ("all_reduce", "all_gather", "broadcast")
        for dtype in ("float32", "bfloat16")
    }
    good = not wrong and (
        needed <= set(right) if context.backend == "gloo" else len(right) == 2 * len(NAMES)
    )
    return judge_result(
        good,
        f"{said}, {context.world} ranks",
        "each value as computed",
        "integers that the dtype knows",
        evidence,
        remedy,
    )


def nccl_exact(context: Context) -> Result:
    """Nine collectives by NCCL."""
    if not context.gpu or context.backend != "nccl":
        raise Skip("no GPU: NCCL does not run here")
    if context.world < 2:
        raise Skip("one rank: nothing is communicated")
    return _judged(
        context, None, "run nccl-tests with -c 1 on these nodes, and nccl.pairs to find which"
    )


def gloo(context: Context) -> Result:
    """The same on the CPU by gloo. Says nothing of NCCL."""
    if context.world < 2:
        raise Skip("one rank: nothing is communicated")
    with on_cpu(context) as (alike, group):
        return _judged(
            alike, group, "gloo goes over TCP: look at GLOO_SOCKET_IFNAME and the nodes' addresses"
        )


@contextlib.contextmanager
def on_cpu(context: Context) -> Iterator[tuple[Context, Any]]:
    """The same ranks on the CPU, and a gloo group of them."""
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
