"""Names of hosts as Slurm folds them: node[1-3,5] for node1, node2, node3 and node5. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

NUMBERED = re.compile(r"(.*?)(\d{1,15})", re.DOTALL)
FEW = 4  # so many names are shown as they are


def shown_hosts(names: Iterable[str]) -> str:
    """NAMES for people: a few one by one, more folded."""
    found = list(names)
    return ", ".join(found) if len(found) <= FEW else ", ".join(fold_hosts(found))


def fold_hosts(names: Iterable[str]) -> list[str]:
    """NAMES, each once, folded by what stands before their last number: `scontrol show hostnames`
    unfolds each.
    """
    groups: dict[tuple[str, int], set[int]] = {}
    plain: list[str] = []
    for name in dict.fromkeys(names):
        if match := NUMBERED.fullmatch(name):
            width = len(match[2]) if match[2].startswith("0") and len(match[2]) > 1 else 0
            groups.setdefault((match[1], width), set()).add(int(match[2]))
        else:
            plain.append(name)
    out = [
        _folded(prefix, width, sorted(numbers))
        for (prefix, width), numbers in sorted(groups.items())
    ]
    return sorted(plain) + out


def _folded(prefix: str, width: int, numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if (
            runs
            and runs[-1][1] == number - 1
            and len(f"{number:0{width}}") == (width or len(str(number)))
        ):
            runs[-1][1] = number
        else:
            runs.append([number, number])
    parts = [
        f"{first:0{width}}" if first == last else f"{first:0{width}}-{last:0{width}}"
        for first, last in runs
    ]
    return f"{prefix}[{','.join(parts)}]" if len(numbers) > 1 else f"{prefix}{parts[0]}"
