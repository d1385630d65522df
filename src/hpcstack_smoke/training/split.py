"""Checks of models that are split over ranks: tensor and pipeline parallel, FSDP2 by tensor.

Tested in tests/integration/test_chain.py.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hpcstack_smoke.result import Result, Skip
from hpcstack_smoke.training import task
from hpcstack_smoke.training.fsdp import find_torch_version, fully_shard, make_mesh

if TYPE_CHECKING:
    from hpcstack_smoke.context import Context

MAX_STAGES = 16  # of a pipeline; the network has a layer for each


def _split_layers(network: Any, mesh: Any) -> Any:
    """Split the two linear layers of the task's NETWORK over MESH; return it.

    The first is split by columns, the second by rows. Skip where this torch cannot.
    """
    try:
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )
    except ImportError:
        raise Skip(f"torch {torch.__version__} has no tensor parallel") from None
    return parallelize_module(network, mesh, {"1": ColwiseParallel(), "3": RowwiseParallel()})


def check_parallel_tensor(context: Context) -> Result:
    """Test tensor parallelism: each rank has a part of each linear layer, and sees all rows."""
    if context.world < 2 or 2 * task.WIDTH % context.world or task.VOCABULARY % context.world:
        raise Skip(f"{context.world} rank(s) do not divide the layers")

    whole = task.make_network(task.SEED, context.device)
    network = _split_layers(whole, make_mesh(context, context.world))
    # some parameters are DTensors and some are not, which foreach cannot mix
    optimizer = torch.optim.SGD(network.parameters(), lr=task.RATE, foreach=False)
    losses = task.learn_steps(
        network,
        optimizer,
        lambda step: task.make_batch(step, context.world, context.device),
        task.average_over_ranks,
    )

    part = network[1].weight.to_local().shape[0]
    proof = "" if part == 2 * task.WIDTH // context.world else f"{part} columns here: not split"
    return task.judge_training(
        context,
        losses,
        task.gather_parameters(network.parameters()),
        f"{part} of {2 * task.WIDTH} columns on this rank",
        sharded=True,
        proof=proof,
    )


def check_parallel_mesh(context: Context) -> Result:
    """Test two dimensions at once: tensor parallel over pairs of neighbours, FSDP2 over the pairs.

    The two ranks of a pair train on the same rows.
    """
    if context.world < 4 or context.world % 2:
        raise Skip(f"{context.world} rank(s): two dimensions take 4 or more, and an even number")
    shard = fully_shard(context)
    if find_torch_version() < (2, 5):
        raise Skip(
            f"torch {torch.__version__} gathers shards of two dimensions in another order (2.5 "
            f"and newer)"
        )

    pairs = context.world // 2
    pair = context.rank // 2
    grid = make_mesh(context, pairs, 2, names=("data", "tensor"))
    network = _split_layers(task.make_network(task.SEED, context.device), grid["tensor"])
    for layer in (network[1], network[3], network):
        shard(layer, mesh=grid["data"])
    optimizer = torch.optim.SGD(network.parameters(), lr=task.RATE, foreach=False)

    def take_rows(step: int) -> tuple[Any, Any]:
        x, y = task.make_batch(step, context.world, context.device)
        return x[pair::pairs], y[pair::pairs]

    losses = task.learn_steps(network, optimizer, take_rows, task.average_over_ranks)
    kinds = "x".join(str(placement) for placement in network[1].weight.placements)
    return task.judge_training(
        context,
        losses,
        task.gather_parameters(network.parameters()),
        f"{pairs} x 2 ranks, {kinds}",
        sharded=True,
    )


def make_blocks(count: int, device: Any) -> nn.Sequential:
    """Return a network of COUNT stages: an embedding, residual blocks, a head."""
    torch.manual_seed(task.SEED)
    first: nn.Module = nn.Embedding(task.VOCABULARY, task.WIDTH)
    last = nn.Sequential(Block(), nn.Linear(task.WIDTH, task.VOCABULARY))
    return nn.Sequential(first, *(Block() for _ in range(count - 2)), last).to(device)


class Block(nn.Module):
    """A residual block: x + relu(Wx)."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(task.WIDTH, task.WIDTH)

    def forward(self, x: Any) -> Any:
        return x + torch.relu(self.linear(x))


def _train_alone(count: int, context: Context) -> task.Trained:
    """Train the network of COUNT stages in one process, for the same steps."""
    network = make_blocks(count, context.device)
    optimizer = torch.optim.SGD(network.parameters(), lr=task.RATE / 4)
    losses = task.learn_steps(
        network,
        optimizer,
        lambda step: task.make_batch(step, context.world, context.device),
        lambda loss: float(loss.detach()),
    )
    return task.Trained(losses, task.flatten_parameters(network.parameters()))


def check_parallel_pipeline(context: Context) -> Result:
    """Test pipeline parallelism: a stage on each rank, with GPipe's schedule.

    There are as many micro-batches as stages. The weights are gathered and compared.
    """
    try:
        from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    except ImportError:
        raise Skip(
            f"torch {torch.__version__} has no torch.distributed.pipelining (2.5 and newer)"
        ) from None
    if not 2 <= context.world <= MAX_STAGES:
        raise Skip(f"{context.world} rank(s): a pipeline of 2 to {MAX_STAGES} stages is made")
    import torch.distributed as dist

    world = context.world
    micro = world
    last = world - 1
    rows = task.PER_RANK * world
    part = make_blocks(world, context.device)[context.rank]
    stage = _make_stage(PipelineStage, part, context, rows // micro)

    # The losses of the micro-batches add up to the mean over the batch. So gradients must not be
    # divided by the number of micro-batches, as newer torch does unless it is told.
    options = {}
    if "scale_grads" in inspect.signature(ScheduleGPipe.__init__).parameters:
        options["scale_grads"] = False

    def loss_fn(out: Any, target: Any) -> Any:
        return nn.functional.cross_entropy(out.float(), target, reduction="sum") / rows

    schedule = ScheduleGPipe(stage, micro, loss_fn=loss_fn, **options)
    optimizer = torch.optim.SGD(part.parameters(), lr=task.RATE / 4)
    losses = []
    for step in range(task.STEPS):
        x, y = task.make_batch(step, world, context.device)
        optimizer.zero_grad()
        pieces: list[Any] = []
        # the first stage is given the rows, the last one what must come out
        if context.rank == 0:
            schedule.step(x)
        elif context.rank == last:
            schedule.step(target=y, losses=pieces)
        else:
            schedule.step()
        optimizer.step()

        total = sum((piece.detach() for piece in pieces), torch.zeros((), device=context.device))
        dist.broadcast(total, src=last)
        losses.append(float(total))

    everyone = context.all(task.flatten_parameters(part.parameters()).cpu())
    values = torch.cat(everyone).to(context.device)
    return task.judge_training(
        context,
        losses,
        values,
        f"{world} stages, {micro} micro-batches, GPipe",
        sharded=True,
        against=_train_alone(world, context),
    )


def _make_stage(kind: Any, part: Any, context: Context, rows: int) -> Any:
    """Return this rank's stage, a KIND of torch's around PART.

    torch 2.5 needs an example of its input, ROWS rows; newer ones ask the stage before.
    """
    place = (part, context.rank, context.world, context.device)
    input_args = inspect.signature(kind.__init__).parameters["input_args"]
    if input_args.default is None and find_torch_version() >= (2, 6):
        return kind(*place)

    if context.rank == 0:
        given = torch.zeros(rows, dtype=torch.long, device=context.device)
    else:
        given = torch.zeros(rows, task.WIDTH, device=context.device, requires_grad=True)
    return kind(*place, input_args=(given,), output_args=part(given))
