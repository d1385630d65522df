"""What goes from the cache: by age, then by size, the longest unused first; never what was used within the last day."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.imagecache.layout import CachedImage, ImageCache

DAY_S = 86400.0


@dataclass(frozen=True)
class Going:
    """One image that goes, and why."""

    key: str
    entry: CachedImage
    why: str


def choose(
    entries: Mapping[str, tuple[CachedImage, float]], now: float, keep_days: float, max_bytes: float, coming: int = 0
) -> list[Going]:
    """Which of ENTRIES go, so that none is older than KEEP_DAYS and all, with COMING bytes more, are MAX_BYTES at most
    (0: no bound). What a job of the last day may still run from stays, also where that is more."""
    total = sum(entry.size for entry, _ in entries.values()) + coming
    going = []
    for key, (entry, used) in sorted(entries.items(), key=lambda item: item[1][1]):
        idle = (now - used) / DAY_S
        if idle > keep_days:
            why = f"unused for {idle:.0f} days"
        elif max_bytes and total > max_bytes and idle > 1:
            why = "the cache is full, and this was unused the longest"
        else:
            continue
        going.append(Going(key, entry, why))
        total -= entry.size
    return going


def collect(cache: ImageCache, keep_days: float, max_bytes: float, coming: int = 0) -> list[Going]:
    """Removes what `choose` names, and what is left of old job steps and rights."""
    going = choose(cache.entries(), time.time(), keep_days, max_bytes, coming)
    for one in going:
        cache.remove(one.key)
    cache.forget_steps()
    cache.withdraw_grants()
    return going
