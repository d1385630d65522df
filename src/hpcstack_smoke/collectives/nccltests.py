"""Find nccl-tests' own programs, where the image has them, and read the table that they print.

Columns since 2.0 are size, count, type, redop, root, then time, algbw, busbw and #wrong (`error`
before 2.11) out of place, and the same four in place. NCCL may print a line of its log between two
rows, or in the middle of one; such a row is left out.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass

ROW = re.compile(
    r"^\s*(\d+)\s+(\d+)\s+(\w+)\s+(\w+)\s+(-?\d+)"
    r"\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+(\S+)"
    r"\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+(\S+)\s*$"
)
AVERAGE = re.compile(r"^# Avg bus bandwidth\s*:\s*([\d.]+)")
OUT_OF_BOUNDS = re.compile(r"^# Out of bounds values\s*:\s*(\d+)\s+(\w+)")
RANK = re.compile(r"^#\s+Rank\s+(\d+)\s")
# #wrong is N/A where nothing was checked; `error` may be 1e-07 or the like
COUNT = re.compile(r"[\d.]+(e[+-]?\d+)?")


@dataclass(frozen=True)
class Table:
    """What a program measured out of place: `rows` is {bytes: (microseconds, busbw GB/s)}.

    `wrong` is the number of wrong values, `ranks` how many ranks took part, `average` the average
    bus bandwidth in GB/s that the program prints.
    """

    rows: dict[int, tuple[float, float]]
    wrong: int
    ranks: int
    average: float


def find_program(name: str = "all_reduce_perf") -> str:
    """Return the path of the program NAME, or of NAME_mpi; empty where the image has neither."""
    return shutil.which(name) or shutil.which(f"{name}_mpi") or ""


def read_table(text: str) -> Table:
    """Return the Table in TEXT, which one of the programs printed."""
    rows: dict[int, tuple[float, float]] = {}
    ranks = set()
    wrong = 0
    average = 0.0
    for line in text.splitlines():
        if match := ROW.match(line):
            rows[int(match[1])] = (float(match[6]), float(match[8]))
            for count in (match[9], match[13]):
                if COUNT.fullmatch(count):
                    wrong += int(float(count))
        elif match := RANK.match(line):
            ranks.add(int(match[1]))
        elif match := AVERAGE.match(line):
            average = float(match[1])
        elif (match := OUT_OF_BOUNDS.match(line)) and match[2] != "OK":
            wrong = max(wrong, int(match[1]))
    return Table(rows, wrong, len(ranks), average)
