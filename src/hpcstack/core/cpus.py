"""Lists of CPUs as Linux writes them (0-51,104-155), and the masks that Slurm takes."""

from __future__ import annotations

import re

LIST = re.compile(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*")


def parse_cpu_list(cpus: str) -> list[tuple[int, int]]:
    """Pairs of first and last; ValueError for what is not a list of CPUs.

    >>> spans("0-3,8")
    [(0, 3), (8, 8)]
    """
    pairs = []
    for one in cpus.split(",") if LIST.fullmatch(cpus) else ():
        first, _, last = one.partition("-")
        pairs.append((int(first), int(last or first)))
    if not pairs or any(first > last for first, last in pairs):
        raise ValueError(f"{cpus!r} is not a list of CPUs, such as 0-25,52-77")
    return pairs


def make_cpu_mask(cpus: str) -> str:
    """The hexadecimal mask of a list of CPUs.

    >>> mask("0-3,8")
    '0x10f'
    """
    return hex(
        sum(((1 << (last - first + 1)) - 1) << first for first, last in parse_cpu_list(cpus))
    )
