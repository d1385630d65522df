"""Host names folded as Slurm folds them: node[1-3,5] for node1, node2, node3 and node5. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

NUMBERED = re.compile(r"(.*?)(\d{1,15})", re.DOTALL)
FEW = 4  # up to so many names are shown one by one


def shorten_hosts(names: Iterable[str]) -> str:
    """Return NAMES as a text to be shown: a few one by one, more of them folded."""
    found = list(names)
    if len(found) > FEW:
        found = fold_hosts(found)
    return ", ".join(found)


def fold_hosts(names: Iterable[str]) -> list[str]:
    """Return NAMES, each once, folded by what stands before their last number.

    `scontrol show hostnames` unfolds each. Numbers with leading zeros are folded among those of the
    same width only.
    """
    groups: dict[tuple[str, int], set[int]] = {}
    plain: list[str] = []
    for name in dict.fromkeys(names):
        match = NUMBERED.fullmatch(name)
        if not match:
            plain.append(name)
            continue
        prefix, number = match[1], match[2]
        has_zeros = number.startswith("0") and len(number) > 1
        width = len(number) if has_zeros else 0
        groups.setdefault((prefix, width), set()).add(int(number))

    out = []
    for (prefix, width), numbers in sorted(groups.items()):
        out.append(_fold(prefix, width, sorted(numbers)))
    return sorted(plain) + out


def _fold(prefix: str, width: int, numbers: list[int]) -> str:
    """Return NUMBERS, sorted, as one name; WIDTH is that of numbers with leading zeros, else 0."""
    runs: list[list[int]] = []  # first and last of each
    for number in numbers:
        follows = runs and runs[-1][1] == number - 1
        # With zeros at the front, 100 does not follow 99 where the width is two.
        if follows and len(f"{number:0{width}}") == (width or len(str(number))):
            runs[-1][1] = number
        else:
            runs.append([number, number])

    parts = []
    for first, last in runs:
        part = f"{first:0{width}}"
        if first != last:
            part += f"-{last:0{width}}"
        parts.append(part)
    if len(numbers) == 1:
        return f"{prefix}{parts[0]}"
    return f"{prefix}[{','.join(parts)}]"
