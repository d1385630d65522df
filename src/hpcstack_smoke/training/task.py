"""The task that every training check learns, and its reference in one process.

y = (7x + 3) mod V is learnable in 20 steps, so a loss that falls proves something. The optimizer is
plain SGD: Adam does not see gradients that are summed instead of averaged. Two oracles judge a
parallel run: the loss of every step against the reference, and the parameters, whose spread over
the ranks must be 0 where they are replicated, and which must be the reference's where they were
sharded and gathered.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hpcstack_smoke.result import Result, judge_result

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcstack_smoke.context import Context

VOCABULARY, WIDTH, STEPS, PER_RANK, RATE = 64, 32, 20, 32, 1.0
TOLERANCE, LOOSE = 1e-4, 2e-2
SEED = 1000
SOURCE = "a single-process run of the same steps"
REMEDY = (
    "gradients are not averaged rightly over the ranks: look at the collective checks, then at "
    "NCCL's log"
)


def make_network(seed: int, device: Any) -> nn.Module:
    """A small network with fixed initial weights."""
    torch.manual_seed(seed)
    layers = nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH),
        nn.Linear(WIDTH, 2 * WIDTH),
        nn.ReLU(),
        nn.Linear(2 * WIDTH, VOCABULARY),
    )
    return layers.to(device)


def make_batch(step: int, world: int, device: Any) -> tuple[Any, Any]:
    """The global batch of one step, the same on all ranks; rank r trains on rows r, r + world, ..."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randint(VOCABULARY, (PER_RANK * world,), generator=generator)
    return x.to(device), ((7 * x + 3) % VOCABULARY).to(device)


def take_own_rows(context: Context, step: int) -> tuple[Any, Any]:
    """This rank's rows of one step's batch."""
    x, y = make_batch(step, context.world, context.device)
    return x[context.rank :: context.world], y[context.rank :: context.world]


def loss_of(network: Any, x: Any, y: Any) -> Any:
    return nn.functional.cross_entropy(network(x).float(), y)


@dataclass(frozen=True)
class Trained:
    """The loss of each step, the mean over the global batch, and the parameters at the end as one
    vector.
    """

    losses: list[float]
    parameters: Any


def learn_steps(
    network: Any,
    optimizer: Any,
    batches: Callable[[int], tuple[Any, Any]],
    average: Callable[[Any], float],
    steps: int = STEPS,
    first: int = 0,
    forward: Any = None,
) -> list[float]:
    """The loss of each of STEPS steps, from the FIRST on; FORWARD makes the loss in another way
    than `loss_of`.
    """
    losses = []
    for step in range(first, first + steps):
        loss = (forward or loss_of)(network, *batches(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(average(loss))
    return losses


@lru_cache(maxsize=8)
def train_reference(world: int, device: Any, autocast: Any = None) -> Trained:
    """The same steps in one process on the global batch; in bf16 autocast if AUTOCAST names the
    dtype.
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
    """A loss that is made under autocast."""

    def forward(network: Any, x: Any, y: Any) -> Any:
        with torch.autocast(device.type, dtype=dtype):
            out = network(x)
        return nn.functional.cross_entropy(out.float(), y)

    return forward


def data_parallel(
    context: Context, network: Any, optimizer: Any, forward: Any = None
) -> list[float]:
    """Each rank trains on its rows; the losses are means over the ranks."""
    return learn_steps(
        network,
        optimizer,
        lambda step: take_own_rows(context, step),
        average_over_ranks,
        forward=forward,
    )


def average_over_ranks(loss: Any) -> float:
    """The mean of LOSS over the ranks."""
    import torch.distributed as dist

    total = loss.detach().clone().float()
    dist.all_reduce(total)
    return float(total) / int(dist.get_world_size())


def flatten_parameters(parameters: Any) -> Any:
    """All parameters as one vector."""
    return torch.cat([parameter.detach().reshape(-1).float() for parameter in parameters])


def gather_parameters(parameters: Any) -> Any:
    """The same of DTensors, whole on every rank."""
    whole = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in parameters]
    return flatten_parameters(whole)


def measure_spread(parameters: Any) -> float:
    """How far the ranks' PARAMETERS are apart at most; infinite where one is not a number."""
    import torch.distributed as dist

    broken = parameters.isnan().any().float().reshape(1)
    dist.all_reduce(broken, op=dist.ReduceOp.MAX)
    if float(broken):
        return float("inf")  # a maximum of NCCL's leaves out what is not a number
    most, least = parameters.clone(), parameters.clone()
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    value = float((most - least).abs().max())
    return value if value == value else float("inf")


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
    """By both oracles. SHARDED: the gathered parameters must be the reference's too. PROOF: what
    was not as it must be.

    A loss that is not a number is infinitely far off. PROOF fails the check whatever the losses
    say.
    """
    expected = against or train_reference(context.world, context.device)
    gaps = [abs(a - b) if a == a else float("inf") for a, b in zip(losses, expected.losses)]
    error, apart = max(gaps), measure_spread(parameters)
    off = float((parameters - expected.parameters).abs().max()) if sharded else 0.0
    off = off if off == off else float("inf")
    learned = losses[-1] < losses[0] / 2
    measured = (
        f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, off the reference by {error:.1e}, spread "
        f"{apart:g}"
    )
    measured += f", parameters off by {off:.1e}" if sharded else ""
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
    """LOSSES as a line to draw."""
    steps = list(range(len(losses)))
    return {
        "name": "loss",
        "x": steps,
        "y": [round(loss, 5) for loss in losses],
        "x_unit": "step",
        "y_unit": "loss",
    }
