"""The check of data loading: the ranks' shards are disjoint and complete, with and without workers.

It also measures which number of workers and which size of batch is fastest.

Tested in tests/integration/test_chain.py.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from hpcstack_smoke.result import Result, judge_result

if TYPE_CHECKING:
    from hpcstack_smoke.context import Context

ROWS = 512  # of the data set
# what is tried, by tier
WORKERS = {"quick": (0,), "standard": (0, 2), "full": (0, 1, 2, 4, 8)}
BATCHES = {"quick": (32,), "standard": (16, 64), "full": (16, 64, 256)}


class Numbers(Dataset):  # type: ignore[misc]
    """A data set whose row n is a small picture with n as its first value.

    So what arrives can be counted.
    """

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, number: int) -> Any:
        row = torch.full((3, 32, 32), float(number % 7))
        row[0, 0, 0] = float(number)
        return row


def read_epoch(context: Context, workers: int, size: int) -> tuple[list[int], float]:
    """Read this rank's rows of one epoch. Return (their numbers, rows a second).

    WORKERS is the number of worker processes, SIZE that of rows in a batch.
    """
    data = Numbers()
    sampler = DistributedSampler(data, context.world, context.rank, shuffle=True, seed=3)
    sampler.set_epoch(1)
    loader = DataLoader(
        data, batch_size=size, sampler=sampler, num_workers=workers, pin_memory=context.gpu
    )
    rows: list[int] = []
    began = time.perf_counter()
    for batch in loader:
        rows += [int(value) for value in batch.to(context.device)[:, 0, 0, 0]]
    return rows, len(rows) / (time.perf_counter() - began)


def check_train_loader(context: Context) -> Result:
    """Test that all ranks together see each row once, with each number of workers."""
    rates: dict[tuple[int, int], float] = {}  # by workers and size of batch: of the slowest rank
    wrong = ""
    cores = min(context.all(os.cpu_count() or 1))
    for workers in WORKERS[context.tier]:
        # far more workers than cores are left out
        if workers and workers * context.per_node > 4 * cores:
            continue
        for size in BATCHES[context.tier]:
            rows, rate = read_epoch(context, workers, size)
            everyone = [row for part in context.all(rows) for row in part]
            seen = set(everyone)
            # the sampler repeats some rows, so that all ranks have as many
            spare = len(everyone) - ROWS
            if seen != set(range(ROWS)) or not 0 <= spare < context.world:
                wrong = f"{len(seen)} of {ROWS} rows seen, {spare} twice, with {workers} workers"
            rates[workers, size] = min(context.all(rate))

    best_workers, best_size = max(rates, key=lambda key: rates[key])
    best = rates[best_workers, best_size]
    measured = wrong
    if not wrong:
        measured = f"{ROWS} rows once each; {best_workers} workers, batches of {best_size} fastest"
        measured += f": {best:,.0f} rows/s a rank"
    series = [
        {
            "name": f"batch {size}",
            "x": [w for w, s in rates if s == size],
            "x_unit": "workers",
            "y_unit": "rows/s",
            "y": [round(rate) for (w, s), rate in rates.items() if s == size],
        }
        for size in BATCHES[context.tier]
    ]
    return judge_result(
        not wrong,
        measured,
        "each row once over all ranks",
        "DistributedSampler",
        series=series,
        remedy="workers use /dev/shm: look at its size in the container",
        figures={"rows_per_s": round(best)},
        informational=bool(context.note()),
    )
