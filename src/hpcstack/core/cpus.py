"""CPU lists as Linux writes them (0-51,104-155), and the masks that Slurm takes.

Tested in tests/unit/launch/test_binding.py.
"""

from __future__ import annotations

import re

LIST = re.compile(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*")


def parse_cpu_list(cpus: str) -> list[tuple[int, int]]:
    """Return the list CPUS as pairs of first and last. Raise ValueError for what is no CPU list.

    >>> parse_cpu_list("0-3,8")
    [(0, 3), (8, 8)]
    """
    pairs = []
    if LIST.fullmatch(cpus):
        for one in cpus.split(","):
            first, _, last = one.partition("-")
            pairs.append((int(first), int(last or first)))

    if not pairs or any(first > last for first, last in pairs):
        raise ValueError(f"{cpus!r} is not a list of CPUs, such as 0-25,52-77")
    return pairs


def make_cpu_mask(cpus: str) -> str:
    """Return the list CPUS as a hexadecimal mask, as `srun --cpu-bind=mask_cpu:` takes one.

    >>> make_cpu_mask("0-3,8")
    '0x10f'
    """
    mask = 0
    for first, last in parse_cpu_list(cpus):
        mask += ((1 << (last - first + 1)) - 1) << first
    return hex(mask)
