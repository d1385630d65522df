"""Remove images from the cache: by age, then by size, the longest unused first.

What was used within the last day is not removed to make room. Nor is what others have imported, for
a user who would then have more than a SHARE of the cache. A first image may be as large as FIRST of
it, since there are small caches.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.imagecache.refusals import NotShared

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.imagecache.layout import CachedImage, ImageCache

DAY_S = 86400.0
SHARE, FIRST = 1 / 4, 1 / 2  # of the cache, or of its disk where it has no limit
IMAGES_OF_ONE = 256  # that one user has imported: each costs a look at every import of everybody
LEFT_OVER_S = 7 * DAY_S  # what imports have left is kept this long, for the next one to resume


@dataclass(frozen=True)
class Going:
    """One image that is removed, and why."""

    key: str
    entry: CachedImage
    why: str


def choose_expired(
    entries: Mapping[str, tuple[CachedImage, float]],
    now: float,
    keep_days: float,
    max_bytes: float,
    coming: int = 0,
    importer: int = 0,
    arriving: int = 0,
) -> list[Going]:
    """Return which of ENTRIES, {key: (image, time of last use)}, to remove.

    What remains was used within KEEP_DAYS, and has, with COMING bytes more, at most MAX_BYTES (0
    for no limit). To keep that limit, nothing is removed that was used within the last day: a job
    may still run from it. Nor is another user's, where IMPORTER, who wants those bytes and ARRIVING
    ones beside them, would have more than a SHARE. Of IMPORTER's own so many go that there are fewer
    than IMAGES_OF_ONE.
    """
    total = sum(entry.size for entry, _ in entries.values()) + coming
    spares_others = would_exceed_share(entries, importer, coming, max_bytes, arriving)
    too_many = max(0, count_images(entries, importer) + 1 - IMAGES_OF_ONE)
    going = []
    for key, (entry, used) in sorted(entries.items(), key=lambda item: item[1][1]):
        idle = (now - used) / DAY_S
        is_own = importer != 0 and entry.importer == importer
        if idle > keep_days:
            why = f"unused for {idle:.0f} days"
        elif is_own and too_many and idle > 1:
            why = f"its user has imported {IMAGES_OF_ONE} others"
        elif spares_others and entry.importer != importer:
            continue
        elif max_bytes and total > max_bytes and idle > 1:
            why = "the cache is full, and this was unused the longest"
        else:
            continue
        going.append(Going(key, entry, why))
        total -= entry.size
        if is_own and too_many:
            too_many -= 1
    return going


def count_images(entries: Mapping[str, tuple[CachedImage, float]], importer: int) -> int:
    """Return how many of ENTRIES a user asked for first; 0 of root, and of who is not known."""
    return sum(entry.importer == importer for entry, _ in entries.values()) if importer else 0


def would_exceed_share(
    entries: Mapping[str, tuple[CachedImage, float]],
    importer: int,
    coming: int,
    of_bytes: float,
    arriving: int = 0,
) -> bool:
    """Return whether IMPORTER would have more than a SHARE of OF_BYTES, with COMING bytes more.

    ARRIVING are those of their other imports. Root, and who is not known (0), may have all.
    """
    own = sum(entry.size for entry, _ in entries.values() if entry.importer == importer) + arriving
    most = SHARE if own else FIRST
    return importer != 0 and own + coming > most * of_bytes


def collect_cache(
    cache: ImageCache,
    keep_days: float,
    max_bytes: float,
    coming: int = 0,
    importer: int = 0,
    key: str = "",
) -> list[Going]:
    """Remove what `choose_expired` names, and return it, but for what somebody got meanwhile.

    COMING are the bytes of the image KEY, which IMPORTER wants.
    """
    before = cache.entries()
    arriving = cache.arriving_for(importer, key)
    going = choose_expired(before, cache.now(), keep_days, max_bytes, coming, importer, arriving)
    gone = [one for one in going if cache.remove(one.key, before[one.key][1])]
    sweep_cache(cache)
    return gone


def sweep_unswept(cache: ImageCache) -> None:
    """Do what `sweep_cache` does, unless another node has just done it."""
    if cache.is_unswept():
        sweep_cache(cache)


def sweep_cache(cache: ImageCache) -> None:
    """Remove leftovers of imports, records of job steps, and expired rights."""
    for part in (
        cache.forget_steps,
        lambda: cache.forget_imports(LEFT_OVER_S),
        cache.bound_partials,
        cache.withdraw_grants,
    ):
        with suppress(OSError):  # what one part cannot remove is no reason to leave the others
            part()


def check_share(cache: ImageCache, max_bytes: float, size: int, importer: int) -> None:
    """Raise NotShared where an image of SIZE bytes has come, and IMPORTER may not put it there.

    Several may have come at once, each of which would have fitted.
    """
    entries = cache.entries()
    total = sum(entry.size for entry, _ in entries.values()) + size
    if max_bytes and total > max_bytes and would_exceed_share(entries, importer, size, max_bytes):
        raise NotShared(
            f"the image cache is full, and more than {SHARE:.0%} of it would be imported for you"
        )


def check_room(
    cache: ImageCache,
    keep_days: float,
    max_bytes: float,
    coming: int,
    key: str,
    importer: int = 0,
) -> list[Going]:
    """Make room on the disk for COMING bytes of the image KEY, which IMPORTER wants.

    Return what was removed.

    What other imports are bringing counts, too; each import needs its size twice. Images are not
    removed yet to keep the cache below MAX_BYTES: a registry may claim any size, so for that they
    are only given up once an image has come (`collect_cache`).

    Raise NotShared, with no image removed, if there will never be room.
    """
    entries = cache.entries()
    arriving = cache.arriving_for(importer, key)
    going = choose_expired(entries, cache.now(), keep_days, max_bytes, coming, importer, arriving)
    freed = sum(one.entry.size for one in going)
    total = sum(entry.size for entry, _ in entries.values()) - freed + coming
    needed = 2 * (coming + cache.arriving(key))

    disk = shutil.disk_usage(cache.top).total
    is_nearly_full = _free(cache) + freed - needed < SHARE * disk
    if max_bytes:
        is_nearly_full = total > max_bytes
    if is_nearly_full and would_exceed_share(
        entries, importer, coming, max_bytes or disk, arriving
    ):
        raise NotShared(
            f"the image cache is nearly full, and with this image more than {SHARE:.0%} of it would "
            "be imported for you"
        )
    own_going = sum(one.entry.importer == importer for one in going)
    if count_images(entries, importer) - own_going >= IMAGES_OF_ONE:
        raise NotShared(f"{IMAGES_OF_ONE} images have been imported for you, and are in use")

    # Left-overs of other imports go first.
    if (max_bytes and total + cache.left_over(key) > max_bytes) or _free(cache) < needed:
        cache.forget_imports(0)
    if max_bytes and total + cache.left_over(key) > max_bytes:
        raise NotShared(
            f"the image cache has no room for {coming / 1e9:.1f} GB (image_cache.max_gb in "
            "site.yaml)"
        )
    if _free(cache) + freed < needed:
        raise NotShared(
            f"the disk of {cache.top} has no room for {coming / 1e9:.1f} GB, which an import needs "
            "twice"
        )

    if _free(cache) >= needed:
        return []
    return collect_cache(cache, keep_days, max_bytes, coming, importer, key)


def _free(cache: ImageCache) -> int:
    """Return the free bytes of the cache's disk."""
    return shutil.disk_usage(cache.top).free
