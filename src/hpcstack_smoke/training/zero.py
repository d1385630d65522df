"""DeepSpeed's ZeRO stages, and its offload to the CPU and to a disk, with proof that each did what
it says.
"""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
import threading
from typing import TYPE_CHECKING, Any

import torch

from hpcstack_smoke.result import Result, Skip
from hpcstack_smoke.training import task

if TYPE_CHECKING:
    from hpcstack_smoke.context import Context

FLAT = {3: "fp32_partitioned_groups_flat"}


def zero1(context: Context) -> Result:
    """The optimizer's state is sharded."""
    return train_with_zero(context, 1)


def zero2(context: Context) -> Result:
    """Gradients too."""
    return train_with_zero(context, 2)


def zero3(context: Context) -> Result:
    """Parameters too."""
    return train_with_zero(context, 3)


def train_with_zero(context: Context, stage: int) -> Result:
    deepspeed = import_deepspeed(context)
    network, engine, sharded = start_engine(context, deepspeed, {"stage": stage})
    whole = task.flatten_parameters(task.make_network(task.SEED, "cpu").parameters()).numel()
    losses = train_engine(context, engine)
    values = gather_zero_parameters(deepspeed, network, stage)
    shard = _shard(sharded, stage)
    evidence = (
        f"DeepSpeed {deepspeed.__version__}, {type(sharded).__name__}, {shard} of {whole} "
        f"parameters on this rank"
    )
    engine.destroy()
    proof = "" if context.world == 1 or shard < whole else "ZeRO did not shard: look at ds_report"
    return task.judge_training(context, losses, values, evidence, sharded=True, proof=proof)


def start_engine(
    context: Context, deepspeed: Any, how: dict[str, Any], **more: Any
) -> tuple[Any, Any, Any]:
    """(network, engine, its optimizer).

    Ranks are seeded apart: DeepSpeed must give all of them rank 0's weights.
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
    """The losses of the task's steps."""
    losses = []
    for step in range(task.STEPS):
        loss = task.loss_of(engine, *task.take_own_rows(context, step))
        engine.backward(loss)
        engine.step()
        losses.append(task.average_over_ranks(loss))
    return losses


def gather_zero_parameters(deepspeed: Any, network: Any, stage: int) -> Any:
    """All parameters, gathered where they are sharded."""
    found = list(network.parameters())
    with deepspeed.zero.GatheredParameters(found, enabled=stage == 3):
        return task.flatten_parameters(found).clone()


def _shard(optimizer: Any, stage: int) -> int:
    """How many parameters' state this rank holds: proof that ZeRO did shard."""
    return sum(
        int(group.numel())
        for group in getattr(optimizer, FLAT.get(stage, "single_partition_of_fp32_groups"))
    )


def offload(context: Context) -> Result:
    """The optimizer's state lies on the CPU."""
    deepspeed = import_deepspeed(context)
    how = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    network, engine, sharded = start_engine(
        context, deepspeed, how, zero_force_ds_cpu_optimizer=False
    )
    losses = train_engine(context, engine)
    values = gather_zero_parameters(deepspeed, network, 2)
    devices = {group.device.type for group in sharded.single_partition_of_fp32_groups}
    engine.destroy()
    proof = (
        ""
        if devices == {"cpu"} and getattr(sharded, "cpu_offload", True)
        else f"the state lies on {devices}"
    )
    return task.judge_training(
        context, losses, values, f"state on {devices}", sharded=True, proof=proof
    )


def nvme(context: Context) -> Result:
    """The optimizer's state lies on a disk: swap files must be seen while it runs, or it proves
    nothing.

    Tensors below 1 MB are not swapped (DeepSpeed's min_aio_bytes), so the network is a larger one.
    """
    deepspeed = import_deepspeed(context)
    from deepspeed.ops.op_builder import AsyncIOBuilder

    context.skip_together(
        ""
        if AsyncIOBuilder().is_compatible(verbose=False)
        else "no libaio headers: async_io is not built"
    )
    folder = tempfile.mkdtemp(prefix="hpcstack-nvme-", dir=os.environ.get("TMPDIR", "/tmp"))
    try:
        seen, losses = _swapped(context, deepspeed, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    measured = f"{seen} swap file(s) seen, loss {losses[0]:.3f} -> {losses[-1]:.3f}"
    good = min(context.all(seen)) > 0 and losses[-1] < losses[0]
    from hpcstack_smoke.result import judge_result

    return judge_result(
        good,
        measured,
        "swap files on every rank during the run, a falling loss",
        "*.swp below nvme_path",
        remedy="nothing was swapped: look at nvme_path, libaio, and the size of the tensors",
    )


def _swapped(context: Context, deepspeed: Any, folder: str) -> tuple[int, list[float]]:
    torch.manual_seed(task.SEED)
    network = torch.nn.Sequential(
        torch.nn.Linear(1024, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1024)
    ).to(context.device)
    place = {"device": "nvme", "nvme_path": folder}
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": 3, "offload_optimizer": place},
        "zero_allow_untested_optimizer": True,
        # DeepSpeed's own would be compiled first, for minutes
        "zero_force_ds_cpu_optimizer": False,
        "aio": {},
    }
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(model=network, optimizer=optimizer, config=config)
    stop, most = threading.Event(), [0]

    def look() -> None:
        while not stop.wait(0.02):
            most[0] = max(
                most[0], len(glob.glob(os.path.join(folder, "**", "*.swp"), recursive=True))
            )

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
    return most[0], losses


def import_deepspeed(context: Context) -> Any:
    """DeepSpeed, on the process group that is there."""
    try:
        import deepspeed
    except ModuleNotFoundError as error:
        if error.name != "deepspeed" or context.named:
            raise
        raise Skip("the image has no DeepSpeed") from None
    if not context.gpu:
        # Its shared-memory collective would be compiled first, for a minute; gloo does the same.
        # DeepSpeed's internal.
        from deepspeed.ops import __compatible_ops__

        __compatible_ops__["deepspeed_shm_comm"] = False
    if not deepspeed.comm.is_initialized():
        deepspeed.init_distributed(dist_backend=context.backend, auto_mpi_discovery=False)
    return deepspeed
