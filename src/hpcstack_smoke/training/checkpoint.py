"""Checks of torch's distributed checkpoints: training resumes from one, and shards can change.

Tested in tests/integration/test_chain.py.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import torch

from hpcstack_smoke.result import Result, Skip, judge_result
from hpcstack_smoke.training import task
from hpcstack_smoke.training.fsdp import shard_network

if TYPE_CHECKING:
    from hpcstack_smoke.context import Context

HALF = 8  # steps before a checkpoint, and after it


def _make_folder(context: Context, name: str) -> str:
    """Return an empty folder that all ranks see."""
    path = os.path.join(context.output, f".checkpoint-{name}")
    if context.rank == 0:
        shutil.rmtree(path, ignore_errors=True)
        os.makedirs(path)
    context.all(0)
    return path


def _import_checkpoint() -> Any:
    """Import torch's distributed checkpoints. Skip where this torch has none."""
    import torch.distributed.checkpoint as dcp

    if not hasattr(dcp, "save"):
        raise Skip(
            f"torch {torch.__version__} has no torch.distributed.checkpoint.save (2.2 and newer)"
        )
    return dcp


def _collect_state(network: Any, optimizer: Any) -> dict[str, Any]:
    """Return {name: tensor} of all that a checkpoint keeps. The tensors are not copied."""
    out = {f"model.{name}": value for name, value in network.state_dict().items()}
    for number, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            if torch.is_tensor(value):
                out[f"optimizer.{number}.{name}"] = value
    return out


def check_train_resume(context: Context) -> Result:
    """Train with DDP, save, train on; load what was saved and train on again: the same to the bit.

    The optimizer has momentum, so that its state counts, too. All ranks write and read.
    """
    dcp = _import_checkpoint()
    from torch.nn.parallel import DistributedDataParallel

    network = task.make_network(task.SEED, context.device)
    around = DistributedDataParallel(network, device_ids=[context.device] if context.gpu else None)
    optimizer = torch.optim.SGD(around.parameters(), lr=task.RATE / 4, momentum=0.5)
    folder = _make_folder(context, "resume")

    def train_half(first: int) -> list[float]:
        return task.learn_steps(
            around,
            optimizer,
            lambda step: task.take_own_rows(context, step),
            task.average_over_ranks,
            HALF,
            first,
        )

    train_half(0)
    dcp.save(_collect_state(network, optimizer), storage_writer=dcp.FileSystemWriter(folder))
    losses = train_half(HALF)
    straight = task.flatten_parameters(network.parameters()).clone()

    # forget everything, then load it
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    state = _collect_state(network, optimizer)  # the tensors in use, which are loaded into
    for value in state.values():
        value.detach().zero_()
    dcp.load(state, storage_reader=dcp.FileSystemReader(folder))
    weights = {
        name.removeprefix("model."): value
        for name, value in state.items()
        if name.startswith("model.")
    }
    network.load_state_dict(weights)
    losses_again = train_half(HALF)
    resumed = task.flatten_parameters(network.parameters())

    same = all(context.all(bool(torch.equal(straight, resumed)) and losses == losses_again))
    size = sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))
    context.all(0)  # until no rank needs the folder any more
    if context.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)

    measured = "the same to the bit"
    if not same:
        measured = f"another: off by {float((straight - resumed).abs().max()):.1e}"
    return judge_result(
        same,
        f"{measured} after {HALF} steps more; {size / 1e3:.0f} kB",
        "the same to the bit",
        "the run that went on",
        remedy="parameters or the optimizer's state are lost in the checkpoint",
    )


def check_train_reshard(context: Context) -> Result:
    """Save shards of all ranks and read them whole on one; save that and read it into shards.

    Rank 0 is the one; both times the parameters must be the same to the bit.
    """
    dcp = _import_checkpoint()
    network = shard_network(context)
    optimizer = torch.optim.SGD(network.parameters(), lr=task.RATE)
    task.train_data_parallel(context, network, optimizer)
    values = task.gather_parameters(network.parameters())

    # from all to one
    shards_folder = _make_folder(context, "shards")
    whole_folder = _make_folder(context, "whole")
    dcp.save(network.state_dict(), storage_writer=dcp.FileSystemWriter(shards_folder))
    import torch.distributed as dist

    alone = dist.new_group([0], backend="gloo")
    whole = task.make_network(task.SEED + 1, torch.device("cpu"))
    gathered = True
    if context.rank == 0:
        state = whole.state_dict()
        reader = dcp.FileSystemReader(shards_folder)
        dcp.load(state, storage_reader=reader, process_group=alone)
        whole.load_state_dict(state)
        gathered = bool(torch.equal(task.flatten_parameters(whole.parameters()), values.cpu()))
        writer = dcp.FileSystemWriter(whole_folder)
        dcp.save(whole.state_dict(), storage_writer=writer, process_group=alone)
    context.all(0)

    # and back
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    state = network.state_dict()
    dcp.load(state, storage_reader=dcp.FileSystemReader(whole_folder))
    network.load_state_dict(state)
    scattered = bool(torch.equal(task.gather_parameters(network.parameters()), values))

    good = all(context.all(gathered and scattered))
    if context.rank == 0:
        for path in (shards_folder, whole_folder):
            shutil.rmtree(path, ignore_errors=True)

    words = {True: "same", False: "ANOTHER"}
    world = context.world
    measured = f"{world} -> 1 {words[gathered]}, 1 -> {world} {words[scattered]}"
    return judge_result(
        good,
        measured,
        "the same to the bit both ways",
        "the run's own parameters",
        remedy="torch.distributed.checkpoint mixes up shards: look at the mesh and the file system",
    )
