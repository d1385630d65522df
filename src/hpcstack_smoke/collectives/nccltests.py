"""nccl-tests' own programs, where the image has them: their table, read. Pure but for finding the
program.

Columns since 2.0: size, count, type, redop, root, then time, algbw, busbw, #wrong (`error` before
2.11) out of place, and the same four in place. A line of NCCL's may stand between two rows, or in
the middle of one, which is left out.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass

ROW = re.compile(
    r"^\s*(\d+)\s+(\d+)\s+(\w+)\s+(\w+)\s+(-?\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+(\S+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)"
    r"\s+(\S+)\s*$"
)
AVERAGE = re.compile(r"^# Avg bus bandwidth\s*:\s*([\d.]+)")
OUT_OF_BOUNDS = re.compile(r"^# Out of bounds values\s*:\s*(\d+)\s+(\w+)")
RANK = re.compile(r"^#\s+Rank\s+(\d+)\s")


@dataclass(frozen=True)
class Table:
    """{bytes: (microseconds, busbw GB/s)} out of place; how many values were wrong, how many ranks
    took part.
    """

    rows: dict[int, tuple[float, float]]
    wrong: int
    ranks: int
    average: float


def find_program(name: str = "all_reduce_perf") -> str:
    """Where it is; empty where the image has none."""
    return shutil.which(name) or shutil.which(f"{name}_mpi") or ""


def read_table(text: str) -> Table:
    """The table that a program printed."""
    rows: dict[int, tuple[float, float]] = {}
    wrong, ranks, average = 0, set(), 0.0
    for line in text.splitlines():
        if match := ROW.match(line):
            rows[int(match[1])] = (float(match[6]), float(match[8]))
            wrong += sum(
                int(float(one))
                for one in (match[9], match[13])
                if re.fullmatch(r"[\d.]+(e[+-]?\d+)?", one)
            )
        elif match := RANK.match(line):
            ranks.add(int(match[1]))
        elif match := AVERAGE.match(line):
            average = float(match[1])
        elif (match := OUT_OF_BOUNDS.match(line)) and match[2] != "OK":
            wrong = max(wrong, int(match[1]))
    return Table(rows, wrong, len(ranks), average)
