"""What goes from the cache: by age, then by size, the longest unused first; never what was used
within the last day.
"""

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


def choose_expired(
    entries: Mapping[str, tuple[CachedImage, float]],
    now: float,
    keep_days: float,
    max_bytes: float,
    coming: int = 0,
) -> list[Going]:
    """Which of ENTRIES go, so that none is older than KEEP_DAYS and all, with COMING bytes more,
    are MAX_BYTES at most (0: no bound). What a job of the last day may still run from stays, also
    where that is more.
    """
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


def collect_cache(
    cache: ImageCache, keep_days: float, max_bytes: float, coming: int = 0
) -> list[Going]:
    """Remove what `choose_expired` names and nobody has got since, and leftovers of imports, job
    steps and rights.
    """
    before = cache.entries()
    going = choose_expired(before, cache.now(), keep_days, max_bytes, coming)
    gone = [one for one in going if cache.remove(one.key, before[one.key][1])]
    cache.forget_steps()
    cache.forget_imports(LEFT_OVER_S)
    cache.withdraw_grants()
    return gone


def check_room(
    cache: ImageCache, keep_days: float, max_bytes: float, coming: int, key: str
) -> list[Going]:
    """What was removed where the disk has no room for COMING bytes of the image KEY and for what is
    imported now.

    Nothing goes for a bound yet: a registry may claim any size, and what is there is given up for
    an image that has come (`collect_cache`). NotShared, with nothing removed, where it will never
    have room.
    """
    entries = cache.entries()
    going = choose_expired(entries, cache.now(), keep_days, max_bytes, coming)
    freed = sum(one.entry.size for one in going)
    total = sum(entry.size for entry, _ in entries.values()) - freed + coming
    needed = 2 * (coming + cache.arriving(key))
    if (max_bytes and total + cache.left_over(key) > max_bytes) or _free(cache) < needed:
        cache.forget_imports(0)
    if max_bytes and total + cache.left_over(key) > max_bytes:
        raise NotShared(
            f"the image cache has no room for {coming / 1e9:.1f} GB (image_cache.max_gb in "
            f"site.yaml)"
        )
    if _free(cache) + freed < needed:
        said = (
            f"the disk of {cache.top} has no room for {coming / 1e9:.1f} GB, twice while it is "
            f"imported"
        )
        raise NotShared(said)
    return collect_cache(cache, keep_days, max_bytes, coming) if _free(cache) < needed else []


def _free(cache: ImageCache) -> int:
    return shutil.disk_usage(cache.top).free
