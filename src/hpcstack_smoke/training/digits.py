"""A real small training that learns: a convolutional network on digits that are drawn here, on 1
and on N ranks.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hpcstack_smoke.result import Result, judge_result
from hpcstack_smoke.training import task

if TYPE_CHECKING:
    from hpcstack_smoke.context import Context

# Ten digits in 5 x 7 dots, a row in five bits
FONT = (
    (14, 17, 19, 21, 25, 17, 14),
    (4, 12, 4, 4, 4, 4, 14),
    (14, 17, 1, 2, 4, 8, 31),
    (31, 2, 4, 2, 1, 17, 14),
    (2, 6, 10, 18, 31, 2, 2),
    (31, 16, 30, 1, 1, 17, 14),
    (6, 8, 16, 30, 17, 17, 14),
    (31, 1, 2, 4, 8, 8, 8),
    (14, 17, 17, 14, 17, 17, 14),
    (14, 17, 17, 15, 1, 2, 12),
)
SIDE, ROWS, STEPS, TEST_ROWS, RATE, MOMENTUM = 12, 240, 120, 1000, 0.05, 0.9
ACCURACY, TOLERANCE = 0.97, 5e-3


def draw_digits(count: int, seed: int) -> tuple[Any, Any]:
    """COUNT pictures (count, 1, SIDE, SIDE) with their digits: shifted, of varying strength, with
    noise.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    font = torch.tensor(
        [[[row >> (4 - column) & 1 for column in range(5)] for row in digit] for digit in FONT]
    ).float()
    pictures = 0.25 * torch.rand(count, SIDE, SIDE, generator=generator)
    places = torch.randint(SIDE - 7, (count, 2), generator=generator)
    strength = 0.6 + 0.4 * torch.rand(count, generator=generator)
    for n in range(count):
        top, left = int(places[n, 0]), int(places[n, 1])
        pictures[n, top : top + 7, left : left + 5] += strength[n] * font[labels[n]]
    return pictures.unsqueeze(1), labels


def make_digits_network(device: Any) -> nn.Module:
    torch.manual_seed(task.SEED)
    layers = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(24 * (SIDE // 4) ** 2, 10),
    )
    return layers.to(device)


def learn_digits(model: Any, context: Context, rank: int, world: int, average: Any) -> list[float]:
    """The losses of STEPS steps; rank RANK of WORLD has its rows of each batch of ROWS."""
    pictures, labels = (one.to(context.device) for one in draw_digits(10 * ROWS, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    losses = []
    for step in range(STEPS):
        start = step % 10 * ROWS
        rows = slice(start + rank, start + ROWS, world)
        loss = nn.functional.cross_entropy(model(pictures[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(average(loss))
    return losses


def digits(context: Context) -> Result:
    """More than 97 % of digits that it never saw; the losses are those of one process; pictures a
    second are told.
    """
    from torch.nn.parallel import DistributedDataParallel

    if ROWS % context.world:
        from hpcstack_smoke.result import Skip

        raise Skip(f"{context.world} ranks do not divide a batch of {ROWS}")
    model = DistributedDataParallel(
        make_digits_network(context.device), device_ids=[context.device] if context.gpu else None
    )
    began = time.perf_counter()
    losses = learn_digits(model, context, context.rank, context.world, task.average_over_ranks)
    took = max(context.all(time.perf_counter() - began))
    alone = make_digits_network(context.device)
    expected = learn_digits(alone, context, 0, 1, lambda loss: float(loss.detach()))
    pictures, labels = (one.to(context.device) for one in draw_digits(TEST_ROWS, 2))
    with torch.no_grad():
        right = float((model.module(pictures).argmax(1) == labels).float().mean())
    error = max(abs(a - b) if a == a else float("inf") for a, b in zip(losses, expected))
    apart = task.measure_spread(task.flatten_parameters(model.parameters()))
    good = right > ACCURACY and error <= TOLERANCE and apart == 0.0
    rate = STEPS * ROWS / took
    series = [
        {
            "name": f"{context.world} ranks",
            "x": list(range(STEPS)),
            "y": [round(loss, 4) for loss in losses],
            "x_unit": "step",
            "y_unit": "loss",
        }
    ]
    return judge_result(
        good,
        (
            f"{right:.1%} of {TEST_ROWS} unseen digits, off one process by {error:.1e}, spread "
            f"{apart:g}"
        ),
        f"> {ACCURACY:.0%}, off by <= {TOLERANCE:g}, spread 0",
        task.SOURCE,
        f"{rate:,.0f} pictures/s",
        task.REMEDY,
        figures={"accuracy": right, "pictures_per_s": round(rate)},
        series=series,
        informational=bool(context.note()),
    )
