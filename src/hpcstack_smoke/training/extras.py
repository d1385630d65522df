"""What only some images have: Horovod, Lightning, DALI. Missing is SKIP."""

from __future__ import annotations

import importlib.util
import os
import socket
import tempfile
from typing import TYPE_CHECKING, Any

import torch

from hpcstack_smoke.result import Result, Skip, judge_result
from hpcstack_smoke.store import find_address
from hpcstack_smoke.training import task

if TYPE_CHECKING:
    from hpcstack_smoke.context import Context


def _needs(context: Context, code: str, module: str) -> None:
    """Skip where the image has no MODULE; RuntimeError where the recipe or the user named CODE
    itself.
    """
    if not importlib.util.find_spec(module):
        if code in context.request.tests.split(","):
            raise RuntimeError(f"no {module} in the image")
        raise Skip(f"the image has no {module}")


def horovod(context: Context) -> Result:
    """Horovod by its own gloo controller; a sum over ranks is compared with ==, and a step of its
    optimizer.

    What horovodrun does for it, rank 0 does here: a rendezvous of Horovod's, whose address the
    others get by torchrun's group.
    """
    _needs(context, "train.horovod", "horovod")
    import horovod.torch as hvd

    if not hvd.gloo_built():
        raise Skip("this Horovod meets by MPI only: hpcstack launch --mode mpi")
    server = _meet(context)
    try:
        hvd.init()
        return _summed(context, hvd)
    finally:
        hvd.shutdown()
        if server:
            server.stop()


def _meet(context: Context) -> Any:
    """Horovod's variables, as horovodrun would set them; on rank 0 its rendezvous, too."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    names: list[Any] = [None] * context.world
    torch.distributed.all_gather_object(names, socket.gethostname())
    hosts = ",".join(f"{name}:{context.per_node}" for name in dict.fromkeys(names))
    slots = get_host_assignments(parse_hosts(hosts), context.world)
    server = RendezvousServer(verbose=0) if context.rank == 0 else None
    place: list[Any] = [None]
    if server:
        place = [(find_address(), server.start())]
        server.init(slots)
    torch.distributed.broadcast_object_list(place, 0)
    own = slots[context.rank]
    numbers = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
    more = {
        "HOSTNAME": names[context.rank],
        "CONTROLLER": "gloo",
        "CPU_OPERATIONS": "gloo",
        "GLOO_RENDEZVOUS_ADDR": place[0][0],
        "GLOO_RENDEZVOUS_PORT": place[0][1],
        **{name.upper(): getattr(own, name) for name in numbers},
    }
    os.environ.update({f"HOROVOD_{name}": str(value) for name, value in more.items()})
    return server


def _summed(context: Context, hvd: Any) -> Result:
    total = hvd.allreduce(torch.full((8,), float(context.rank), device=context.device), op=hvd.Sum)
    expected = float(sum(range(context.world)))
    weight = torch.nn.Parameter(torch.zeros(4, device=context.device))
    sgd = torch.optim.SGD([weight], lr=1.0)
    optimizer = hvd.DistributedOptimizer(sgd, named_parameters=[("weight", weight)], op=hvd.Sum)
    (
        weight * float(context.rank)
    ).sum().backward()  # the gradient is the rank; its sum is exact, a mean need not be
    optimizer.step()
    good = (
        hvd.size() == context.world
        and bool((total == expected).all())
        and bool((weight == -expected).all())
    )
    said = f"{hvd.size()} ranks, sum {float(total[0]):g}, a step by {float(weight.detach()[0]):g}"
    return judge_result(
        good,
        said,
        f"{context.world} ranks, sum {expected:g}, a step by {-expected:g}",
        "the ranks' numbers",
    )


def lightning(context: Context) -> Result:
    """Lightning's trainer in this very process group: the losses are the reference's."""
    name = next(
        (one for one in ("lightning", "pytorch_lightning") if importlib.util.find_spec(one)), ""
    )
    if not name:
        raise Skip("the image has no lightning")
    pl: Any = importlib.import_module("lightning.pytorch" if name == "lightning" else name)
    losses: list[float] = []

    class Module(pl.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.network = task.make_network(task.SEED, "cpu")

        def training_step(self, batch: Any, number: int) -> Any:
            loss = task.loss_of(self.network, *(one.squeeze(0) for one in batch))
            losses.append(task.average_over_ranks(loss))
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=task.RATE)

    from dataclasses import replace

    rows = [
        task.take_own_rows(replace(context, device=torch.device("cpu")), step)
        for step in range(task.STEPS)
    ]
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
    values = task.flatten_parameters(module.network.parameters()).to(context.device)
    return task.judge_training(context, losses, values, f"lightning {pl.__version__}")


def dali(context: Context) -> Result:
    """A DALI pipeline on this rank's device: what goes in comes out."""
    _needs(context, "train.dali", "nvidia.dali" if importlib.util.find_spec("nvidia") else "nvidia")
    import numpy
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(
        batch_size=4, num_threads=1, device_id=context.local_rank if context.gpu else None
    )  # type: ignore[untyped-decorator]
    def pipe() -> Any:
        numbers = fn.external_source(
            source=lambda: [numpy.full((8,), n, dtype=numpy.float32) for n in range(4)]
        )
        return numbers.gpu() * 2 if context.gpu else numbers * 2

    made = pipe()
    made.build()
    (out,) = made.run()
    values = (out.as_cpu() if context.gpu else out).as_array()
    return judge_result(
        bool((values[:, 0] == [0, 2, 4, 6]).all()), f"{values.shape[0]} rows", "each number doubled"
    )
