"""The tasks of a job array as Slurm's option --array has them: 5, 1-9:2 or 1-3,7%2. Pure.

https://slurm.schedmd.com/sbatch.html, --array. What follows % is how many tasks run at a time.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

FORM = re.compile(r"(\d{1,10})(?:-(\d{1,10})(?::(\d{1,10}))?)?")


def read_tasks(said: str) -> list[range] | None:
    """Return the tasks that SAID means, in ranges; None where it is not understood."""
    tasks, has_limit, limit = said.strip("[]").partition("%")
    if has_limit and not limit.isdigit():
        return None
    ranges = []
    for piece in tasks.split(","):
        found = FORM.fullmatch(piece)
        if not found:
            return None
        first = int(found[1])
        last = int(found[2] or first)
        if last < first:
            return None
        ranges.append(range(first, last + 1, max(int(found[3] or 1), 1)))
    return ranges


def count_tasks(said: str) -> int:
    """Return how many tasks Slurm means by SAID; 1 where it is not understood."""
    ranges = read_tasks(said)
    return max(sum(map(len, ranges or ())), 1)


def join_tasks(tasks: Iterable[int]) -> str:
    """Return TASKS as the option --array takes them: 1-3,7."""
    pieces: list[list[int]] = []
    for task in sorted(set(tasks)):
        if pieces and task == pieces[-1][-1] + 1:
            pieces[-1].append(task)
        else:
            pieces.append([task])
    return ",".join(f"{one[0]}-{one[-1]}" if len(one) > 1 else str(one[0]) for one in pieces)
