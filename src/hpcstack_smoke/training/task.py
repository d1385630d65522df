"""The task that every training check learns, and its reference in one process.

y = (7x + 3) mod V can be learned in 20 steps, so a loss that falls proves something. The optimizer
is plain SGD: Adam divides by the size of gradients, so it would not show gradients that are summed
instead of averaged.

Two oracles judge a parallel run. The loss of every step is compared with the reference. Replicated
parameters must have a spread of 0 over the ranks; sharded ones, gathered, must be the reference's.

Tested in tests/integration/test_smoke.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hpcstack_smoke.result import Result, judge_result

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcstack_smoke.context import Context

VOCABULARY, WIDTH = 64, 32
STEPS = 20
PER_RANK = 32  # rows of a batch
RATE = 1.0  # of learning
TOLERANCE = 1e-4  # of a loss in fp32
LOOSE = 2e-2  # of one in 16 bits
SEED = 1000
SOURCE = "a single-process run of the same steps"
REMEDY = (
    "gradients are not averaged rightly over the ranks: look at the collective checks, then at "
    "NCCL's log"
)


def make_network(seed: int, device: Any) -> nn.Module:
    """Return a small network on DEVICE, whose weights depend on SEED alone."""
    torch.manual_seed(seed)
    layers = nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH),
        nn.Linear(WIDTH, 2 * WIDTH),
        nn.ReLU(),
        nn.Linear(2 * WIDTH, VOCABULARY),
    )
    return layers.to(device)


def make_batch(step: int, world: int, device: Any) -> tuple[Any, Any]:
    """Return (x, y) of the global batch of STEP, which is the same on all ranks.

    It has PER_RANK rows for each of WORLD ranks; rank r trains on the rows r, r + world, ...
    """
    generator = torch.Generator().manual_seed(step)
    x = torch.randint(VOCABULARY, (PER_RANK * world,), generator=generator)
    return x.to(device), ((7 * x + 3) % VOCABULARY).to(device)


def take_own_rows(context: Context, step: int) -> tuple[Any, Any]:
    """Return this rank's rows (x, y) of the batch of STEP."""
    x, y = make_batch(step, context.world, context.device)
    return x[context.rank :: context.world], y[context.rank :: context.world]


def compute_loss(network: Any, x: Any, y: Any) -> Any:
    """Return the cross entropy of what NETWORK says of X, in fp32."""
    return nn.functional.cross_entropy(network(x).float(), y)


@dataclass(frozen=True)
class Trained:
    """What came out of a training."""

    losses: list[float]  # of each step, the mean over the global batch
    parameters: Any  # at the end, as one vector


def learn_steps(
    network: Any,
    optimizer: Any,
    batches: Callable[[int], tuple[Any, Any]],
    average: Callable[[Any], float],
    steps: int = STEPS,
    first: int = 0,
    forward: Any = None,
) -> list[float]:
    """Train for STEPS steps, from the step FIRST on. Return the loss of each.

    BATCHES gives the rows of a step. AVERAGE makes a number of its loss, over all ranks. FORWARD
    computes the loss, in place of `compute_loss`.
    """
    forward = forward or compute_loss
    losses = []
    for step in range(first, first + steps):
        loss = forward(network, *batches(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(average(loss))
    return losses


@lru_cache(maxsize=8)
def train_reference(world: int, device: Any, autocast: Any = None) -> Trained:
    """Train the same steps in one process, on the global batch of WORLD ranks.

    AUTOCAST is the dtype that is computed in; without it fp32.
    """
    network = make_network(SEED, device)
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
    forward = in_autocast(device, autocast) if autocast else None
    losses = learn_steps(
        network,
        optimizer,
        lambda step: make_batch(step, world, device),
        lambda loss: float(loss.detach()),
        forward=forward,
    )
    return Trained(losses, flatten_parameters(network.parameters()))


def in_autocast(device: Any, dtype: Any) -> Callable[[Any, Any, Any], Any]:
    """Return a function that computes the loss as `compute_loss`, with autocast to DTYPE."""

    def forward(network: Any, x: Any, y: Any) -> Any:
        with torch.autocast(device.type, dtype=dtype):
            out = network(x)
        return nn.functional.cross_entropy(out.float(), y)

    return forward


def train_data_parallel(
    context: Context, network: Any, optimizer: Any, forward: Any = None
) -> list[float]:
    """Train the task, each rank on its own rows. Return the losses, as means over the ranks."""
    return learn_steps(
        network,
        optimizer,
        lambda step: take_own_rows(context, step),
        average_over_ranks,
        forward=forward,
    )


def average_over_ranks(loss: Any) -> float:
    """Return the mean of LOSS over the ranks."""
    import torch.distributed as dist

    total = loss.detach().clone().float()
    dist.all_reduce(total)
    return float(total) / int(dist.get_world_size())


def flatten_parameters(parameters: Any) -> Any:
    """Return all PARAMETERS as one vector in fp32."""
    return torch.cat([parameter.detach().reshape(-1).float() for parameter in parameters])


def gather_parameters(parameters: Any) -> Any:
    """Return all PARAMETERS as one vector, whole on every rank also where they are DTensors."""
    whole = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in parameters]
    return flatten_parameters(whole)


def measure_spread(parameters: Any) -> float:
    """Return how far apart the ranks' PARAMETERS are at most; infinite where one is NaN."""
    import torch.distributed as dist

    # asked for first, since NCCL's maximum ignores NaN
    broken = parameters.isnan().any().float().reshape(1)
    dist.all_reduce(broken, op=dist.ReduceOp.MAX)
    if float(broken):
        return float("inf")

    most, least = parameters.clone(), parameters.clone()
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    return _infinite_if_nan(float((most - least).abs().max()))


def measure_gap(loss: float, expected: float) -> float:
    """Return how far LOSS is off what was EXPECTED; infinite where it is NaN."""
    return float("inf") if math.isnan(loss) else abs(loss - expected)


def _infinite_if_nan(value: float) -> float:
    """Return VALUE, or infinity in place of NaN, which no comparison would find too large."""
    return float("inf") if math.isnan(value) else value


def judge_training(
    context: Context,
    losses: list[float],
    parameters: Any,
    evidence: str = "",
    *,
    against: Trained | None = None,
    tolerance: float = TOLERANCE,
    sharded: bool = False,
    proof: str = "",
) -> Result:
    """Judge a training by both oracles.

    AGAINST is the reference, by default that of the plain task; TOLERANCE how far a loss may be
    off it. SHARDED: the gathered PARAMETERS must be the reference's, too. PROOF says what was not
    as the check needs it; where it says anything, the result is a FAIL whatever the losses are.
    """
    expected = against or train_reference(context.world, context.device)
    error = max(measure_gap(a, b) for a, b in zip(losses, expected.losses))
    apart = measure_spread(parameters)
    off = 0.0
    if sharded:
        off = _infinite_if_nan(float((parameters - expected.parameters).abs().max()))
    learned = losses[-1] < losses[0] / 2

    measured = f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, off the reference by {error:.1e}"
    measured += f", spread {apart:g}"
    if sharded:
        measured += f", parameters off by {off:.1e}"
    limit = f"off by <= {tolerance:g} at each of {len(losses)} steps, spread 0, loss halved"
    good = (
        error <= tolerance
        and apart == 0.0
        and off <= 10 * tolerance
        and learned
        and len(losses) == len(expected.losses)
    )
    return judge_result(
        good and not proof,
        f"{proof}; {measured}" if proof else measured,
        limit,
        SOURCE,
        evidence,
        REMEDY,
        series=[draw_losses(losses)],
        figures={"loss_error": error, "spread": apart},
    )


def draw_losses(losses: list[float]) -> dict[str, Any]:
    """Return LOSSES as a series for the report."""
    steps = list(range(len(losses)))
    return {
        "name": "loss",
        "x": steps,
        "y": [round(loss, 5) for loss in losses],
        "x_unit": "step",
        "y_unit": "loss",
    }
