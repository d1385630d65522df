"""Checks of DeepSpeed: ZeRO's stages, and its offload to the CPU and to a disk.

Each has a proof that DeepSpeed did shard or offload, beside the losses and parameters.

Tested in tests/integration/test_chain.py and ci/one_gpu.py.
"""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
import threading
from typing import TYPE_CHECKING, Any

import torch

from hpcstack_smoke.result import Result, Skip, judge_result
from hpcstack_smoke.training import task

if TYPE_CHECKING:
    from hpcstack_smoke.context import Context

# attribute of DeepSpeed's optimizer that holds this rank's shard, by stage where it differs
FLAT = {3: "fp32_partitioned_groups_flat"}


def check_deepspeed_zero1(context: Context) -> Result:
    """Test ZeRO 1, which shards the optimizer's state."""
    return train_with_zero(context, 1)


def check_deepspeed_zero2(context: Context) -> Result:
    """Test ZeRO 2, which shards gradients, too."""
    return train_with_zero(context, 2)


def check_deepspeed_zero3(context: Context) -> Result:
    """Test ZeRO 3, which shards parameters, too."""
    return train_with_zero(context, 3)


def train_with_zero(context: Context, stage: int) -> Result:
    """Train the task with ZeRO's STAGE. As proof, this rank may hold only a part of the state."""
    deepspeed = import_deepspeed(context)
    network, engine, sharded = start_engine(context, deepspeed, {"stage": stage})
    whole = task.flatten_parameters(task.make_network(task.SEED, "cpu").parameters()).numel()

    losses = train_engine(context, engine)
    values = gather_zero_parameters(deepspeed, network, stage)
    shard = _count_shard(sharded, stage)
    evidence = f"DeepSpeed {deepspeed.__version__}, {type(sharded).__name__}"
    evidence += f", {shard} of {whole} parameters on this rank"
    engine.destroy()

    proof = "" if context.world == 1 or shard < whole else "ZeRO did not shard: look at ds_report"
    return task.judge_training(context, losses, values, evidence, sharded=True, proof=proof)


def start_engine(
    context: Context, deepspeed: Any, how: dict[str, Any], **more: Any
) -> tuple[Any, Any, Any]:
    """Return (the task's network, DeepSpeed's engine around it, the engine's optimizer).

    HOW is the part `zero_optimization` of DeepSpeed's configuration, MORE are further keys. Each
    rank begins with weights of its own: DeepSpeed must give all of them rank 0's.
    """
    network = task.make_network(task.SEED + context.rank, context.device)
    config = {
        "train_micro_batch_size_per_gpu": task.PER_RANK,
        "zero_optimization": how,
        "zero_allow_untested_optimizer": True,
        **more,
    }
    optimizer = torch.optim.SGD(network.parameters(), lr=task.RATE)
    engine, sharded, _, _ = deepspeed.initialize(model=network, optimizer=optimizer, config=config)
    return network, engine, sharded


def train_engine(context: Context, engine: Any) -> list[float]:
    """Train the task's steps by ENGINE. Return their losses."""
    losses = []
    for step in range(task.STEPS):
        loss = task.compute_loss(engine, *task.take_own_rows(context, step))
        engine.backward(loss)
        engine.step()
        losses.append(task.average_over_ranks(loss))
    return losses


def gather_zero_parameters(deepspeed: Any, network: Any, stage: int) -> Any:
    """Return all parameters as one vector, gathered first where STAGE shards them."""
    found = list(network.parameters())
    with deepspeed.zero.GatheredParameters(found, enabled=stage == 3):
        return task.flatten_parameters(found).clone()


def _count_shard(optimizer: Any, stage: int) -> int:
    """Return of how many parameters this rank holds the state."""
    groups = getattr(optimizer, FLAT.get(stage, "single_partition_of_fp32_groups"))
    return sum(int(group.numel()) for group in groups)


def check_deepspeed_offload(context: Context) -> Result:
    """Test offload of the optimizer's state to the CPU. As proof, it must lie there."""
    deepspeed = import_deepspeed(context)
    how = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    # else DeepSpeed insists on its own CPU optimizer, which is compiled first, for minutes
    network, engine, sharded = start_engine(
        context, deepspeed, how, zero_force_ds_cpu_optimizer=False
    )
    losses = train_engine(context, engine)
    values = gather_zero_parameters(deepspeed, network, 2)
    devices = {group.device.type for group in sharded.single_partition_of_fp32_groups}
    engine.destroy()

    proof = ""
    if devices != {"cpu"} or not getattr(sharded, "cpu_offload", True):
        proof = f"the state lies on {devices}"
    return task.judge_training(
        context, losses, values, f"state on {devices}", sharded=True, proof=proof
    )


def check_deepspeed_nvme(context: Context) -> Result:
    """Test offload of the optimizer's state to a disk.

    As proof, swap files must be seen on every rank while it trains.
    """
    deepspeed = import_deepspeed(context)
    from deepspeed.ops.op_builder import AsyncIOBuilder

    can_build = AsyncIOBuilder().is_compatible(verbose=False)
    context.skip_together("" if can_build else "no libaio headers: async_io is not built")

    folder = tempfile.mkdtemp(prefix="hpcstack-nvme-", dir=os.environ.get("TMPDIR", "/tmp"))
    try:
        seen, losses = _train_swapped(context, deepspeed, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)

    measured = f"{seen} swap file(s) seen, loss {losses[0]:.3f} -> {losses[-1]:.3f}"
    good = min(context.all(seen)) > 0 and losses[-1] < losses[0]
    return judge_result(
        good,
        measured,
        "swap files on every rank during the run, a falling loss",
        "*.swp below nvme_path",
        remedy="nothing was swapped: look at nvme_path, libaio, and the size of the tensors",
    )


def _train_swapped(context: Context, deepspeed: Any, folder: str) -> tuple[int, list[float]]:
    """Train with the optimizer's state swapped to FOLDER.

    Return (the most swap files that were there at a time, the losses).
    """
    torch.manual_seed(task.SEED)
    # larger than the task's: DeepSpeed does not swap tensors below 1 MB (its min_aio_bytes)
    network = torch.nn.Sequential(
        torch.nn.Linear(1024, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1024)
    ).to(context.device)
    place = {"device": "nvme", "nvme_path": folder}
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": 3, "offload_optimizer": place},
        "zero_allow_untested_optimizer": True,
        # DeepSpeed's own CPU optimizer would be compiled first, for minutes
        "zero_force_ds_cpu_optimizer": False,
        "aio": {},
    }
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(model=network, optimizer=optimizer, config=config)

    # swap files go again: a thread looks for them while the network trains
    stop = threading.Event()
    most = 0

    def look() -> None:
        nonlocal most
        while not stop.wait(0.02):
            files = glob.glob(os.path.join(folder, "**", "*.swp"), recursive=True)
            most = max(most, len(files))

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    losses = []
    x = torch.randn(4, 1024, generator=torch.Generator().manual_seed(1)).to(context.device)
    for _ in range(5):
        loss = engine(x).float().pow(2).mean()
        engine.backward(loss)
        engine.step()
        losses.append(task.average_over_ranks(loss))
    stop.set()
    watcher.join()
    engine.destroy()
    return most, losses


def import_deepspeed(context: Context) -> Any:
    """Import DeepSpeed and let it use the process group that is there. Return the module.

    Skip where the image does not have it; ModuleNotFoundError where checks were asked for by name.
    """
    try:
        import deepspeed
    except ModuleNotFoundError as error:
        # a module that DeepSpeed itself needs is no reason to skip
        if error.name != "deepspeed" or context.named:
            raise
        raise Skip("the image has no DeepSpeed") from None

    if not context.gpu:
        # Its shared-memory collective would be compiled first, for a minute; gloo does the same.
        # The table is internal to DeepSpeed: there is no public way.
        from deepspeed.ops import __compatible_ops__

        __compatible_ops__["deepspeed_shm_comm"] = False
    if not deepspeed.comm.is_initialized():
        deepspeed.init_distributed(dist_backend=context.backend, auto_mpi_discovery=False)
    return deepspeed
