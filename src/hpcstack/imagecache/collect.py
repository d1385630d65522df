"""What goes from the cache: by age, then by size, the longest unused first; never what was used within the last day."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.imagecache.refusals import NotShared

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.imagecache.layout import CachedImage, ImageCache

DAY_S = 86400.0
LEFT_OVER_S = 7 * DAY_S  # of an import that nobody has gone on with


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
    """Removes what `choose` names and nobody has got since, and what is left of imports, job steps and rights."""
    before = cache.entries()
    going = choose(before, cache.now(), keep_days, max_bytes, coming)
    gone = [one for one in going if cache.used(one.key) <= before[one.key][1]]
    for one in gone:
        cache.remove(one.key)
    cache.forget_steps()
    cache.forget_imports(LEFT_OVER_S)
    cache.withdraw_grants()
    return gone


def make_room(cache: ImageCache, keep_days: float, max_bytes: float, coming: int) -> list[Going]:
    """What was removed so that COMING bytes have room. NotShared, with nothing removed, where they never will: a
    registry may claim any size, and what is there is not given up for it."""
    entries = cache.entries()
    going = choose(entries, cache.now(), keep_days, max_bytes, coming)
    freed = sum(one.entry.size for one in going)
    total = sum(entry.size for entry, _ in entries.values())
    if max_bytes and total - freed + coming > max_bytes:
        raise NotShared(f"the image cache has no room for {coming / 1e9:.1f} GB (image_cache.max_gb in site.yaml)")
    if shutil.disk_usage(cache.top).free + freed < 2 * coming:
        said = f"the disk of {cache.top} has no room for {coming / 1e9:.1f} GB, twice while it is imported"
        raise NotShared(said)
    return collect(cache, keep_days, max_bytes, coming)
