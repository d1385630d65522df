"""A real small training: a convolutional network learns digits, as on one process.

The digits are drawn here, so that no data set is fetched.

Tested in tests/integration/test_smoke.py.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hpcstack_smoke.result import Result, Skip, judge_result
from hpcstack_smoke.training import task

if TYPE_CHECKING:
    from hpcstack_smoke.context import Context

# ten digits of 5 x 7 dots: a tuple for each, a number of five bits for each row
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
SIDE = 12  # pixels of a picture
ROWS = 240  # pictures of a batch
STEPS = 120
TEST_ROWS = 1000  # pictures that were not learned from
RATE, MOMENTUM = 0.05, 0.9  # of the optimizer
ACCURACY = 0.97  # share of the test's pictures that must be recognized
TOLERANCE = 5e-3  # of a loss, against that of one process


def draw_digits(count: int, seed: int) -> tuple[Any, Any]:
    """Return COUNT pictures, of shape (COUNT, 1, SIDE, SIDE), and which digits they show.

    The digits are shifted, of varying strength, and with noise.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    dots = [[[row >> (4 - column) & 1 for column in range(5)] for row in digit] for digit in FONT]
    font = torch.tensor(dots).float()

    pictures = 0.25 * torch.rand(count, SIDE, SIDE, generator=generator)
    places = torch.randint(SIDE - 7, (count, 2), generator=generator)
    strength = 0.6 + 0.4 * torch.rand(count, generator=generator)
    for n in range(count):
        top, left = int(places[n, 0]), int(places[n, 1])
        pictures[n, top : top + 7, left : left + 5] += strength[n] * font[labels[n]]
    return pictures.unsqueeze(1), labels


def make_digits_network(device: Any) -> nn.Module:
    """Return a small convolutional network on DEVICE, with the same weights on all ranks."""
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
    """Train MODEL for STEPS steps on the rows of RANK of WORLD. Return the losses.

    AVERAGE makes a number of a loss, over all ranks.
    """
    pictures, labels = (one.to(context.device) for one in draw_digits(10 * ROWS, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    losses = []
    for step in range(STEPS):
        start = step % 10 * ROWS  # there are ten batches, which come again and again
        rows = slice(start + rank, start + ROWS, world)
        loss = nn.functional.cross_entropy(model(pictures[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(average(loss))
    return losses


def check_train_digits(context: Context) -> Result:
    """Train by DDP, and once more in one process.

    The losses must be those of one process, and more than 97 % of digits that the network has
    never seen must be recognized. The result has the pictures a second.
    """
    from torch.nn.parallel import DistributedDataParallel

    if ROWS % context.world:
        raise Skip(f"{context.world} ranks do not divide a batch of {ROWS}")

    network = make_digits_network(context.device)
    device_ids = [context.device] if context.gpu else None
    model = DistributedDataParallel(network, device_ids=device_ids)
    began = time.perf_counter()
    losses = learn_digits(model, context, context.rank, context.world, task.average_over_ranks)
    took = max(context.all(time.perf_counter() - began))

    alone = make_digits_network(context.device)
    expected = learn_digits(alone, context, 0, 1, lambda loss: float(loss.detach()))

    pictures, labels = (one.to(context.device) for one in draw_digits(TEST_ROWS, 2))
    with torch.no_grad():
        right = float((model.module(pictures).argmax(1) == labels).float().mean())
    error = max(task.measure_gap(a, b) for a, b in zip(losses, expected))
    apart = task.measure_spread(task.flatten_parameters(model.parameters()))
    good = right > ACCURACY and error <= TOLERANCE and apart == 0.0

    rate = STEPS * ROWS / took
    measured = f"{right:.1%} of {TEST_ROWS} unseen digits, off one process by {error:.1e}"
    measured += f", spread {apart:g}"
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
        measured,
        f"> {ACCURACY:.0%}, off by <= {TOLERANCE:g}, spread 0",
        task.SOURCE,
        f"{rate:,.0f} pictures/s",
        task.REMEDY,
        figures={"accuracy": right, "pictures_per_s": round(rate)},
        series=series,
        informational=bool(context.note()),
    )
