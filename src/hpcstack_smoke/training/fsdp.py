"""Fully sharded data parallel, both kinds: the losses, the shards, and the gathered parameters are
judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from hpcstack_smoke.result import Result, Skip
from hpcstack_smoke.training import task

if TYPE_CHECKING:
    from hpcstack_smoke.context import Context


def find_torch_version() -> tuple[int, int]:
    """(major, minor) of torch."""
    major, minor = (int(one) for one in torch.__version__.split(".")[:2])
    return major, minor


def fully_shard(context: Context) -> Any:
    """FSDP2's function: public since torch 2.6, under _composable and for GPUs alone in 2.4 and
    2.5.
    """
    if not context.gpu and (2, 4) <= find_torch_version() < (2, 6):
        raise Skip(f"fully_shard of torch {torch.__version__} is for GPUs (on CPUs from 2.6 on)")
    try:
        from torch.distributed.fsdp import fully_shard as found
    except ImportError:
        try:
            from torch.distributed._composable.fsdp import fully_shard as found
        except ImportError:
            raise Skip(f"torch {torch.__version__} has no fully_shard (2.4 and newer)") from None
    return found


def mesh_of(context: Context, *shape: int, names: tuple[str, ...] = ()) -> Any:
    """A device mesh of SHAPE, of the kind that this rank computes on."""
    try:
        from torch.distributed.device_mesh import init_device_mesh
    except ImportError:
        raise Skip(f"torch {torch.__version__} has no device mesh") from None
    kind = "cuda" if context.gpu else "cpu"
    return init_device_mesh(kind, shape, **({"mesh_dim_names": names} if names else {}))


def shard_network(context: Context, mesh: Any = None) -> Any:
    """The task's network, every layer sharded over MESH or all ranks."""
    shard = fully_shard(context)
    network = task.make_network(task.SEED, context.device)
    mesh = mesh or mesh_of(context, context.world)
    for layer in network:
        if any(True for _ in layer.parameters()):
            shard(layer, mesh=mesh)
    shard(network, mesh=mesh)
    return network


def fsdp2(context: Context) -> Result:
    """fully_shard: parameters are DTensors, each rank holds about 1 / world of them."""
    network = shard_network(context)
    optimizer = torch.optim.SGD(network.parameters(), lr=task.RATE)
    losses = task.data_parallel(context, network, optimizer)
    parameters = list(network.parameters())
    whole = sum(one.numel() for one in parameters)
    local = sum(
        one.to_local().numel() if hasattr(one, "to_local") else one.numel() for one in parameters
    )
    limit = sum(
        -(-one.shape[0] // context.world) * (one.numel() // one.shape[0]) for one in parameters
    )
    proof = (
        ""
        if context.world == 1 or local <= limit < whole
        else f"{local} of {whole} here: not sharded"
    )
    evidence = f"{local} of {whole} parameters on this rank, {type(parameters[0]).__name__}"
    return task.judge_training(
        context, losses, task.gather_parameters(parameters), evidence, sharded=True, proof=proof
    )


def fsdp1(context: Context) -> Result:
    """FullyShardedDataParallel, what torch had before.

    On CPUs it is not supported everywhere: then SKIP.
    """
    from torch.distributed.fsdp import FullyShardedDataParallel

    if not context.gpu:
        raise Skip("FullyShardedDataParallel is for GPUs")
    network = task.make_network(task.SEED, context.device)
    around = FullyShardedDataParallel(network, device_id=context.device)
    optimizer = torch.optim.SGD(around.parameters(), lr=task.RATE)
    losses = task.data_parallel(context, around, optimizer)
    local = sum(one.numel() for one in around.parameters())
    with FullyShardedDataParallel.summon_full_params(around):
        values = task.flatten_parameters(around.parameters()).clone()
    whole = values.numel()
    proof = "" if context.world == 1 or local < whole else f"{local} of {whole} here: not sharded"
    return task.judge_training(
        context,
        losses,
        values,
        f"{local} of {whole} parameters on this rank",
        sharded=True,
        proof=proof,
    )
