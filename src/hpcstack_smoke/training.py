"""Training checks over all ranks: DDP, and DeepSpeed's ZeRO stages, each by two oracles (see task.py)."""

from __future__ import annotations

import shutil
from typing import Any

from hpcstack_smoke import task
from hpcstack_smoke.context import Context
from hpcstack_smoke.result import Result, Skip, judge

SEED = 1000


def ddp(context: Context) -> Result:
    """DistributedDataParallel. Ranks are seeded apart: it must give all of them rank 0's weights."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    network = task.model(SEED + context.rank, context.device)
    wrapped = DistributedDataParallel(network, device_ids=[context.device] if context.gpu else None)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=task.RATE)
    losses = []
    for step in range(task.STEPS):
        x, y = task.batch(step, context.world, context.device)
        loss = task.loss_of(wrapped, x[context.rank :: context.world], y[context.rank :: context.world])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(task.mean(loss))
    return _result(context, losses, task.flat(network.parameters()), f"{context.world} ranks, {context.backend}")


def zero(context: Context, stage: int) -> Result:
    """DeepSpeed ZeRO: 1 shards the optimizer's state, 2 the gradients too, 3 the parameters too."""
    deepspeed = _deepspeed(context)
    import torch

    network = task.model(SEED + context.rank, context.device)
    whole = sum(parameter.numel() for parameter in network.parameters())
    config = {
        "train_micro_batch_size_per_gpu": task.PER_RANK,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.SGD(network.parameters(), lr=task.RATE)
    engine, sharded, _, _ = deepspeed.initialize(model=network, optimizer=optimizer, config=config)
    losses = []
    for step in range(task.STEPS):
        x, y = task.batch(step, context.world, context.device)
        loss = task.loss_of(engine, x[context.rank :: context.world], y[context.rank :: context.world])
        engine.backward(loss)
        engine.step()
        losses.append(task.mean(loss))
    parameters = list(network.parameters())
    with deepspeed.zero.GatheredParameters(parameters, enabled=stage == 3):
        values = task.flat(parameters).clone()
    shard = _shard(sharded, stage)
    evidence = (
        f"DeepSpeed {deepspeed.__version__}, {type(sharded).__name__}, {shard} of {whole} parameters on this rank"
    )
    result = _result(context, losses, values, evidence)
    engine.destroy()
    if context.world > 1 and not shard < whole:
        return judge(False, evidence, "a shard smaller than the whole", remedy="ZeRO did not shard: look at ds_report")
    return result


def _shard(optimizer: Any, stage: int) -> int:
    """How many parameters' state this rank holds: proof that ZeRO did shard."""
    name = "fp32_partitioned_groups_flat" if stage == 3 else "single_partition_of_fp32_groups"
    return sum(int(group.numel()) for group in getattr(optimizer, name))


def _result(context: Context, losses: list[float], parameters: Any, evidence: str) -> Result:
    expected = task.reference(SEED, context.world, context.device)
    judged = task.judged(losses, expected, parameters)
    return judge(judged.good(), judged.measured(), task.EXPECTED, task.SOURCE, evidence, task.REMEDY)


def _deepspeed(context: Context) -> Any:
    try:
        import deepspeed
    except ModuleNotFoundError as error:
        if error.name != "deepspeed" or context.named:
            raise
        raise Skip("the image has no DeepSpeed") from None
    if not context.gpu and not shutil.which("g++"):
        # Without a compiler its shared-memory collective cannot be built; gloo does the same. An internal of DeepSpeed.
        from deepspeed.ops import __compatible_ops__

        __compatible_ops__["deepspeed_shm_comm"] = False
    if not deepspeed.comm.is_initialized():
        deepspeed.init_distributed(dist_backend=context.backend, auto_mpi_discovery=False)
    return deepspeed
