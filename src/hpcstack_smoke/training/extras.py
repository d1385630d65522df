"""What only some images have: Horovod, Lightning, DALI. Missing is SKIP."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from typing import TYPE_CHECKING, Any

import torch

from hpcstack_smoke.result import Result, Skip, judge
from hpcstack_smoke.training import task

if TYPE_CHECKING:
    from hpcstack_smoke.context import Context


def _needs(module: str) -> None:
    if not importlib.util.find_spec(module):
        raise Skip(f"the image has no {module}")


def horovod(context: Context) -> Result:
    """Horovod over gloo meets by torchrun's addresses; the mean of ranks is compared with ==."""
    _needs("horovod")
    names = {"RANK": "RANK", "SIZE": "WORLD_SIZE", "LOCAL_RANK": "LOCAL_RANK", "LOCAL_SIZE": "LOCAL_WORLD_SIZE"}
    for name, source in names.items():
        os.environ[f"HOROVOD_{name}"] = os.environ[source]
    import horovod.torch as hvd

    if hvd.mpi_built() and not hvd.gloo_built():
        raise Skip("this Horovod meets by MPI only: hpcstack launch --mode mpi")
    if not os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR"):
        raise Skip("Horovod's gloo wants horovodrun's rendezvous, which torchrun is not")
    hvd.init()
    total = hvd.allreduce(torch.full((8,), float(context.rank)), op=hvd.Sum)
    expected = float(sum(range(context.world)))
    good = hvd.size() == context.world and bool((total == expected).all())
    return judge(good, f"{hvd.size()} ranks, sum {float(total[0]):g}", f"{context.world} ranks, sum {expected:g}")


def lightning(context: Context) -> Result:
    """Lightning's trainer in this very process group: the losses are the reference's."""
    name = next((one for one in ("lightning", "pytorch_lightning") if importlib.util.find_spec(one)), "")
    if not name:
        raise Skip("the image has no lightning")
    pl: Any = importlib.import_module("lightning.pytorch" if name == "lightning" else name)
    losses: list[float] = []

    class Module(pl.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.network = task.model(task.SEED, "cpu")

        def training_step(self, batch: Any, number: int) -> Any:
            loss = task.loss_of(self.network, *(one.squeeze(0) for one in batch))
            losses.append(task.mean(loss))
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=task.RATE)

    from dataclasses import replace

    rows = [task.mine(replace(context, device=torch.device("cpu")), step) for step in range(task.STEPS)]
    trainer = pl.Trainer(
        accelerator="gpu" if context.gpu else "cpu",
        devices=context.per_node,
        num_nodes=context.nodes,
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        use_distributed_sampler=False,
        enable_model_summary=False,
        default_root_dir=tempfile.mkdtemp(prefix="hpcstack-lightning-"),
    )
    module = Module()
    trainer.fit(module, torch.utils.data.DataLoader(rows, batch_size=1))
    values = task.flat(module.network.parameters()).to(context.device)
    return task.judged(context, losses, values, f"lightning {pl.__version__}")


def dali(context: Context) -> Result:
    """A DALI pipeline on this rank's device: what goes in comes out."""
    _needs("nvidia.dali" if importlib.util.find_spec("nvidia") else "nvidia")
    import numpy
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(batch_size=4, num_threads=1, device_id=context.local_rank if context.gpu else None)  # type: ignore[untyped-decorator]
    def pipe() -> Any:
        numbers = fn.external_source(source=lambda: [numpy.full((8,), n, dtype=numpy.float32) for n in range(4)])
        return numbers.gpu() * 2 if context.gpu else numbers * 2

    made = pipe()
    made.build()
    (out,) = made.run()
    values = (out.as_cpu() if context.gpu else out).as_array()
    return judge(bool((values[:, 0] == [0, 2, 4, 6]).all()), f"{values.shape[0]} rows", "each number doubled")
