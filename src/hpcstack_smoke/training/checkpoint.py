"""Checkpoints: saved, gone on, loaded again and gone on again must be the same to the bit; and in
other shards.
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

HALF = 8


def _folder(context: Context, name: str) -> str:
    """A folder that all ranks see, empty."""
    path = os.path.join(context.output, f".checkpoint-{name}")
    if context.rank == 0:
        shutil.rmtree(path, ignore_errors=True)
        os.makedirs(path)
    context.all(0)
    return path


def _state(network: Any, optimizer: Any) -> dict[str, Any]:
    out = {f"model.{name}": value for name, value in network.state_dict().items()}
    for number, values in optimizer.state_dict()["state"].items():
        out |= {
            f"optimizer.{number}.{name}": value
            for name, value in values.items()
            if torch.is_tensor(value)
        }
    return out


def resume(context: Context) -> Result:
    """DDP with momentum: torch's distributed checkpoint is written by all and read by all; training
    goes on from it.
    """
    import torch.distributed.checkpoint as dcp

    if not hasattr(dcp, "save"):
        raise Skip(
            f"torch {torch.__version__} has no torch.distributed.checkpoint.save (2.2 and newer)"
        )
    from torch.nn.parallel import DistributedDataParallel

    network = task.make_network(task.SEED, context.device)
    around = DistributedDataParallel(network, device_ids=[context.device] if context.gpu else None)
    optimizer = torch.optim.SGD(around.parameters(), lr=task.RATE / 4, momentum=0.5)
    folder = _folder(context, "resume")
    task.learn_steps(
        around,
        optimizer,
        lambda step: task.take_own_rows(context, step),
        task.average_over_ranks,
        HALF,
    )
    dcp.save(_state(network, optimizer), storage_writer=dcp.FileSystemWriter(folder))
    first = task.learn_steps(
        around,
        optimizer,
        lambda step: task.take_own_rows(context, step),
        task.average_over_ranks,
        HALF,
        HALF,
    )
    straight = task.flatten_parameters(network.parameters()).clone()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    state = _state(network, optimizer)  # the same tensors, which are loaded into in place
    for value in state.values():
        value.detach().zero_()
    dcp.load(state, storage_reader=dcp.FileSystemReader(folder))
    network.load_state_dict(
        {
            name.removeprefix("model."): value
            for name, value in state.items()
            if name.startswith("model.")
        }
    )
    again = task.learn_steps(
        around,
        optimizer,
        lambda step: task.take_own_rows(context, step),
        task.average_over_ranks,
        HALF,
        HALF,
    )
    resumed = task.flatten_parameters(network.parameters())
    same = all(context.all(bool(torch.equal(straight, resumed)) and first == again))
    size = sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))
    context.all(0)
    if context.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
    measured = (
        "the same to the bit"
        if same
        else f"another: off by {float((straight - resumed).abs().max()):.1e}"
    )
    return judge_result(
        same,
        f"{measured} after {HALF} steps more; {size / 1e3:.0f} kB",
        "the same to the bit",
        "the run that went on",
        remedy="parameters or the optimizer's state are lost in the checkpoint",
    )


def reshard(context: Context) -> Result:
    """Saved in as many shards as ranks, read whole by one; saved whole by one, read into shards."""
    import torch.distributed.checkpoint as dcp

    if not hasattr(dcp, "save"):
        raise Skip(
            f"torch {torch.__version__} has no torch.distributed.checkpoint.save (2.2 and newer)"
        )
    network = shard_network(context)
    optimizer = torch.optim.SGD(network.parameters(), lr=task.RATE)
    task.data_parallel(context, network, optimizer)
    values = task.gather_parameters(network.parameters())
    folder, other = _folder(context, "shards"), _folder(context, "whole")
    dcp.save(network.state_dict(), storage_writer=dcp.FileSystemWriter(folder))
    import torch.distributed as dist

    alone = dist.new_group([0], backend="gloo")
    whole = task.make_network(task.SEED + 1, torch.device("cpu"))
    one = True
    if context.rank == 0:
        state = whole.state_dict()
        dcp.load(state, storage_reader=dcp.FileSystemReader(folder), process_group=alone)
        whole.load_state_dict(state)
        one = bool(torch.equal(task.flatten_parameters(whole.parameters()), values.cpu()))
        dcp.save(
            whole.state_dict(), storage_writer=dcp.FileSystemWriter(other), process_group=alone
        )
    context.all(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    state = network.state_dict()
    dcp.load(state, storage_reader=dcp.FileSystemReader(other))
    network.load_state_dict(state)
    back = bool(torch.equal(task.gather_parameters(network.parameters()), values))
    good = all(context.all(one and back))
    if context.rank == 0:
        for path in (folder, other):
            shutil.rmtree(path, ignore_errors=True)
    measured = (
        f"{context.world} -> 1 {'same' if one else 'ANOTHER'}, 1 -> {context.world} "
        f"{'same' if back else 'ANOTHER'}"
    )
    return judge_result(
        good,
        measured,
        "the same to the bit both ways",
        "the run's own parameters",
        remedy="torch.distributed.checkpoint mixes up shards: look at the mesh and the file system",
    )
