"""Checks of fully sharded data parallel, FSDP2 and FSDP1, and what other checks need of them.

The losses, the size of the shards, and the gathered parameters are judged.

Tested in tests/integration/test_smoke.py and tests/integration/test_chain.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from hpcstack_smoke.result import Result, Skip
from hpcstack_smoke.training import task

if TYPE_CHECKING:
    from hpcstack_smoke.context import Context


def find_torch_version() -> tuple[int, int]:
    """Return (major, minor) of torch."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def fully_shard(context: Context) -> Any:
    """Return FSDP2's function. Skip where this torch does not have it for this rank's device.

    It is public since torch 2.6. In 2.4 and 2.5 it is in _composable, and for GPUs only.
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


def make_mesh(context: Context, *shape: int, names: tuple[str, ...] = ()) -> Any:
    """Return a device mesh of SHAPE, of the kind of device that this rank computes on.

    NAMES are those of its dimensions. Skip where this torch has no meshes.
    """
    try:
        from torch.distributed.device_mesh import init_device_mesh
    except ImportError:
        raise Skip(f"torch {torch.__version__} has no device mesh") from None
    kind = "cuda" if context.gpu else "cpu"
    if names:
        return init_device_mesh(kind, shape, mesh_dim_names=names)
    return init_device_mesh(kind, shape)


def shard_network(context: Context, mesh: Any = None) -> Any:
    """Return the task's network, with each of its layers sharded over MESH or all ranks."""
    shard = fully_shard(context)
    network = task.make_network(task.SEED, context.device)
    mesh = mesh or make_mesh(context, context.world)
    for layer in network:
        has_parameters = any(True for _ in layer.parameters())
        if has_parameters:
            shard(layer, mesh=mesh)
    shard(network, mesh=mesh)
    return network


def check_fsdp_fsdp2(context: Context) -> Result:
    """Test fully_shard. As proof, each rank may hold only its share of the parameters.

    A parameter is split along its first dimension; where that does not divide, some ranks hold
    one row more.
    """
    network = shard_network(context)
    optimizer = torch.optim.SGD(network.parameters(), lr=task.RATE)
    losses = task.train_data_parallel(context, network, optimizer)

    parameters = list(network.parameters())
    whole = 0
    local = 0
    limit = 0
    for one in parameters:
        whole += one.numel()
        local += one.to_local().numel() if hasattr(one, "to_local") else one.numel()
        rows = -(-one.shape[0] // context.world)  # rounded up
        limit += rows * (one.numel() // one.shape[0])

    proof = ""
    if context.world > 1 and not local <= limit < whole:
        proof = f"{local} of {whole} here: not sharded"
    evidence = f"{local} of {whole} parameters on this rank, {type(parameters[0]).__name__}"
    return task.judge_training(
        context, losses, task.gather_parameters(parameters), evidence, sharded=True, proof=proof
    )


def check_fsdp_fsdp1(context: Context) -> Result:
    """Test FullyShardedDataParallel, what torch had before fully_shard. It is for GPUs."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    if not context.gpu:
        raise Skip("FullyShardedDataParallel is for GPUs")

    network = task.make_network(task.SEED, context.device)
    around = FullyShardedDataParallel(network, device_id=context.device)
    optimizer = torch.optim.SGD(around.parameters(), lr=task.RATE)
    losses = task.train_data_parallel(context, around, optimizer)

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
