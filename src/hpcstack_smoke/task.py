"""The task that every training check learns, and its reference in one process.

y = (7x + 3) mod V is learnable in 20 steps, so a loss that falls proves something. The optimizer is plain SGD: Adam
does not see gradients that are summed instead of averaged. Two oracles judge a parallel run: the loss of every step
against the reference, and the spread of the parameters over the ranks, which must be 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

VOCABULARY, WIDTH, STEPS, PER_RANK, RATE = 64, 32, 20, 32, 1.0
TOLERANCE = 1e-4


def model(seed: int, device: Any) -> nn.Module:
    """A small network with fixed initial weights."""
    torch.manual_seed(seed)
    layers = nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, VOCABULARY)
    )
    return layers.to(device)


def batch(step: int, world: int, device: Any) -> tuple[Any, Any]:
    """The global batch of one step, the same on all ranks; rank r trains on rows r, r + world, ..."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randint(VOCABULARY, (PER_RANK * world,), generator=generator)
    return x.to(device), ((7 * x + 3) % VOCABULARY).to(device)


def loss_of(network: Any, x: Any, y: Any) -> Any:
    return nn.functional.cross_entropy(network(x).float(), y)


def reference(seed: int, world: int, device: Any) -> list[float]:
    """The loss of each step in one process on the global batch."""
    network = model(seed, device)
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
    losses = []
    for step in range(STEPS):
        loss = loss_of(network, *batch(step, world, device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@dataclass(frozen=True)
class Judged:
    """How far a parallel run is from its reference."""

    error: float
    spread: float
    first: float
    last: float

    def good(self) -> bool:
        return self.error <= TOLERANCE and self.spread == 0.0 and self.last < self.first / 2

    def measured(self) -> str:
        return (
            f"loss {self.first:.3f} -> {self.last:.3f}, off the reference by {self.error:.1e}, spread {self.spread:g}"
        )


EXPECTED = f"off by <= {TOLERANCE:g} at each of {STEPS} steps, spread 0, loss halved"
SOURCE = "a single-process run of the same steps"
REMEDY = "gradients are not averaged rightly over the ranks: look at the collective checks, then at NCCL's log"


def judged(losses: list[float], expected: list[float], parameters: Any) -> Judged:
    """LOSSES are the mean over ranks; PARAMETERS are this rank's, one flat vector."""
    import torch.distributed as dist

    most, least = parameters.clone(), parameters.clone()
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    gaps = [abs(a - b) if a == a else float("inf") for a, b in zip(losses, expected)]  # noqa: B905
    spread = float((most - least).abs().max())
    return Judged(max(gaps), spread if spread == spread else float("inf"), losses[0], losses[-1])


def mean(loss: Any) -> float:
    """The mean of LOSS over the ranks."""
    import torch.distributed as dist

    total = loss.detach().clone()
    dist.all_reduce(total)
    return float(total) / int(dist.get_world_size())


def flat(parameters: Any) -> Any:
    """All parameters as one vector."""
    return torch.cat([parameter.detach().reshape(-1).float() for parameter in parameters])
