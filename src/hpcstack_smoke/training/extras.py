"""Checks of what only some images have: Horovod, Lightning, DALI. Without it they are skipped.

Tested in ci/one_gpu.py.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from hpcstack_smoke.result import Result, Skip, judge_result
from hpcstack_smoke.store import find_address
from hpcstack_smoke.training import task

if TYPE_CHECKING:
    from hpcstack_smoke.context import Context


def _require_module(context: Context, code: str, module: str) -> None:
    """Skip where the image has no MODULE.

    That is a RuntimeError if the recipe or the user named the check CODE itself.
    """
    if not importlib.util.find_spec(module):
        if code in context.request.tests.split(","):
            raise RuntimeError(f"no {module} in the image")
        raise Skip(f"the image has no {module}")


def check_train_horovod(context: Context) -> Result:
    """Test Horovod with its gloo controller: a sum over ranks, and a step of its optimizer.

    Both are compared with ==. Nobody has started horovodrun, so rank 0 runs Horovod's rendezvous
    itself, and the others get its address by torchrun's process group.
    """
    _require_module(context, "train.horovod", "horovod")
    import horovod.torch as hvd

    if not hvd.gloo_built():
        raise Skip("this Horovod meets by MPI only: hpcstack launch --mode mpi")
    server = _prepare_rendezvous(context)
    try:
        hvd.init()
        return _sum_by_horovod(context, hvd)
    finally:
        hvd.shutdown()
        if server:
            server.stop()


def _prepare_rendezvous(context: Context) -> Any:
    """Set Horovod's variables as horovodrun would.

    On rank 0 start its rendezvous, too, and return that; elsewhere return None.
    """
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    names: list[Any] = [None] * context.world
    torch.distributed.all_gather_object(names, socket.gethostname())
    hosts = ",".join(f"{name}:{context.per_node}" for name in dict.fromkeys(names))
    slots = get_host_assignments(parse_hosts(hosts), context.world)

    server = None
    place: list[Any] = [None]
    if context.rank == 0:
        server = RendezvousServer(verbose=0)
        place = [(find_address(), server.start())]
        server.init(slots)
    torch.distributed.broadcast_object_list(place, 0)
    address, port = place[0]

    values = {
        "HOSTNAME": names[context.rank],
        "CONTROLLER": "gloo",
        "CPU_OPERATIONS": "gloo",
        "GLOO_RENDEZVOUS_ADDR": address,
        "GLOO_RENDEZVOUS_PORT": port,
    }
    own = slots[context.rank]
    for name in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"):
        values[name.upper()] = getattr(own, name)
    os.environ.update({f"HOROVOD_{name}": str(value) for name, value in values.items()})
    return server


def _sum_by_horovod(context: Context, hvd: Any) -> Result:
    """Judge a sum over ranks, and a step whose gradient is such a sum."""
    total = hvd.allreduce(torch.full((8,), float(context.rank), device=context.device), op=hvd.Sum)
    expected = float(sum(range(context.world)))

    weight = torch.nn.Parameter(torch.zeros(4, device=context.device))
    sgd = torch.optim.SGD([weight], lr=1.0)
    optimizer = hvd.DistributedOptimizer(sgd, named_parameters=[("weight", weight)], op=hvd.Sum)
    # the gradient is the rank: its sum over ranks is exact, which a mean need not be
    loss = (weight * float(context.rank)).sum()
    loss.backward()
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


def check_train_lightning(context: Context) -> Result:
    """Train the task by Lightning's trainer, in the process group that is there already."""
    if importlib.util.find_spec("lightning"):
        module_name = "lightning.pytorch"
    elif importlib.util.find_spec("pytorch_lightning"):  # the older name
        module_name = "pytorch_lightning"
    else:
        raise Skip("the image has no lightning")
    pl: Any = importlib.import_module(module_name)
    losses: list[float] = []

    class Module(pl.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.network = task.make_network(task.SEED, "cpu")

        def training_step(self, batch: Any, number: int) -> Any:
            loss = task.compute_loss(self.network, *(one.squeeze(0) for one in batch))
            losses.append(task.average_over_ranks(loss))
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=task.RATE)

    # the trainer itself moves rows to the device
    on_cpu = replace(context, device=torch.device("cpu"))
    rows = [task.take_own_rows(on_cpu, step) for step in range(task.STEPS)]
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


def check_train_dali(context: Context) -> Result:
    """Test a DALI pipeline that doubles numbers on this rank's device."""
    # where there is no package nvidia at all, looking for nvidia.dali would be an error
    has_nvidia = importlib.util.find_spec("nvidia")
    _require_module(context, "train.dali", "nvidia.dali" if has_nvidia else "nvidia")
    import numpy
    from nvidia.dali import fn, pipeline_def

    def make_rows() -> list[Any]:
        return [numpy.full((8,), n, dtype=numpy.float32) for n in range(4)]

    device_id = context.local_rank if context.gpu else None

    @pipeline_def(batch_size=4, num_threads=1, device_id=device_id)  # type: ignore[untyped-decorator]
    def pipe() -> Any:
        numbers = fn.external_source(source=make_rows)
        if context.gpu:
            numbers = numbers.gpu()
        return numbers * 2

    made = pipe()
    made.build()
    (out,) = made.run()
    if context.gpu:
        out = out.as_cpu()
    values = out.as_array()
    return judge_result(
        bool((values[:, 0] == [0, 2, 4, 6]).all()), f"{values.shape[0]} rows", "each number doubled"
    )
