"""Bugs for the suite to find, one in each of several checks. Run in every rank before its checks
(HPCSTACK_SMOKE_PLANT).

Nothing here touches a result or a judge: what is changed is what runs (gradients, data,
collectives, logs, time).
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hpcstack_smoke.collectives import exact, pairs, permutations, transport
from hpcstack_smoke.training import ddp, digits, features, task

SLOW_RANK = 2


@contextlib.contextmanager
def changed(place: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(place, name)
    setattr(place, name, value)
    try:
        yield
    finally:
        setattr(place, name, before)


def with_hook(check: Callable[[Any], Any], hook: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """CHECK, with every DDP that it makes handing its gradients to HOOK in place of the mean over
    ranks.
    """
    make = DistributedDataParallel.__init__

    def init(self: Any, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        self.register_comm_hook(None, hook)

    def run(context: Any) -> Any:
        with changed(DistributedDataParallel, "__init__", init):
            return check(context)

    return run


def ready(tensor: Any) -> Any:
    future: Any = torch.futures.Future()
    future.set_result(tensor)
    return future


def alone(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """No gradient sync."""
    return ready(bucket.buffer())


def summed(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The sum, not the mean."""
    buffer = bucket.buffer()
    dist.all_reduce(buffer)
    return ready(buffer)


def one_row(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The mean, and on one rank one wrong row."""
    buffer = bucket.buffer()
    dist.all_reduce(buffer)
    buffer /= dist.get_world_size()
    if dist.get_rank() == 1:
        buffer[:32] += 1e-3
    return ready(buffer)


def same_data(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Every rank trains on rank 0's rows."""
    mine = task.take_own_rows

    def run(context: Any) -> Any:
        with changed(task, "take_own_rows", lambda own, step: mine(replace(own, rank=0), step)):
            return check(context)

    return run


def corrupted(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """One value of one rank's all_reduce is another."""
    reduce = dist.all_reduce

    def broken(tensor: Any, *args: Any, **options: Any) -> Any:
        out = reduce(tensor, *args, **options)
        if dist.get_rank() == 1:
            tensor.view(-1)[-1] += 1
        return out

    def run(context: Any) -> Any:
        with changed(dist, "all_reduce", broken):
            return check(context)

    return run


def sockets(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A log in which NCCL fell back to sockets, on nodes with active ports."""
    text = (Path(__file__).parent / "sockets.log").read_text()

    def run(context: Any) -> Any:
        with changed(transport, "read_own_lines", lambda output: text.splitlines()):
            with changed(
                transport, "find_fabric_here", lambda request: ("the nodes' active ports", False)
            ):
                return check(replace(context, gpu=True))

    return run


def slow(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Every rank plays a node, and one of them is slow."""
    exchange = dist.batch_isend_irecv

    def late(work: Any) -> Any:
        if dist.get_rank() == SLOW_RANK:
            time.sleep(0.15)
        return exchange(work)

    def run(context: Any) -> Any:
        with changed(dist, "batch_isend_irecv", late):
            with changed(pairs.socket, "gethostname", lambda: f"n{context.rank}"):
                return check(replace(context, nodes=context.world, local_rank=0))

    return run


def garbled(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """One number of what one rank sends is another."""
    exchange = dist.batch_isend_irecv

    def wrong(work: Any) -> Any:
        if dist.get_rank() == SLOW_RANK:
            work[0].tensor[-1] += 1
        return exchange(work)

    def run(context: Any) -> Any:
        with changed(dist, "batch_isend_irecv", wrong):
            return check(context)

    return run


ddp.check_ddp_fp32 = with_hook(ddp.check_ddp_fp32, alone)
ddp.check_ddp_buckets = with_hook(ddp.check_ddp_buckets, summed)
features.check_train_checkpointing = with_hook(features.check_train_checkpointing, one_row)
ddp.check_ddp_autocast = same_data(ddp.check_ddp_autocast)
digits.check_train_digits = with_hook(digits.check_train_digits, summed)
exact.check_nccl_gloo = corrupted(exact.check_nccl_gloo)
transport.check_nccl_transport = sockets(transport.check_nccl_transport)
pairs.check_nccl_gloo_pairs = slow(pairs.check_nccl_gloo_pairs)
permutations.check_nccl_gloo_permutations = garbled(permutations.check_nccl_gloo_permutations)
