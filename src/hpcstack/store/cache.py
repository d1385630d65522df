"""The user's own cache: imported bases, finished steps, what is being fetched, keys that are known."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core import sharing
from hpcstack.core.dirs import cache_home
from hpcstack.core.errors import StoreError
from hpcstack.core.files import owner, private_folder
from hpcstack.core.lease import alive, label, sweep
from hpcstack.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcstack.lock.model import Lock
    from hpcstack.site.load import Site


def cache_of(site: Site) -> Store:
    """The cache of bases: the members of the site's `group` trust each other, and have one; else the user's own."""
    if not sharing.is_shared():
        return own_cache(site)
    shared = Store(site.store / "cache")
    with shared.acting("no cache"):
        for name in ("partial", "busy", "offline", "keys"):
            sharing.make_folder(shared.top / name)
    return shared


def own_cache(site: Site) -> Store:
    """The user's own, beside Apptainer's where the site names one. What lies there is trusted, so it is his alone:
    StoreError where somebody else has made it. Kept steps lie here: an overlay wants folders of one's own group."""
    if not site.build.cachedir:
        own = cache_home() / "hpcstack/bases"
        if own.exists() and own.stat().st_uid not in (os.geteuid(), 0):
            raise StoreError(
                f"the cache {own} belongs to {owner(own)}", "XDG_CACHE_HOME, or build.cachedir in site.yaml"
            )
        return Store(own)
    shared = Path(site.build.cachedir) / f"hpcstack-bases-{os.getuid()}"
    store = Store(shared)
    with store.acting("no cache"):
        private_folder(shared, "remove it, or name another build.cachedir in site.yaml")
    return store


def offline_folder(site: Site, lock: Lock, platform: str) -> Path:
    """Where what a bundle brought for a locked stack lies: its base, and packages/."""
    return cache_of(site).top / "offline" / f"{lock.digest()[:24]}-{platform.replace('/', '-')}"


def touch(path: Path) -> None:
    """PATH is used: its change time is now. Its modification time, which goes into images, stays."""
    with contextlib.suppress(OSError):  # somebody else's
        path.chmod(path.stat().st_mode & 0o7777)


@contextlib.contextmanager
def busy(cache: Store) -> Iterator[None]:
    """Meanwhile nothing of CACHE is collected."""
    folder = cache.top / "busy"
    folder.mkdir(parents=True, exist_ok=True)
    sweep(folder, "", lambda old: old.unlink(missing_ok=True))
    mark = folder / f"{label()}{uuid.uuid4().hex[:8]}"
    mark.touch()
    try:
        yield
    finally:
        mark.unlink(missing_ok=True)


def is_busy(cache: Store) -> bool:
    """Whether somebody imports or builds with what CACHE holds."""
    folder = cache.top / "busy"
    return any(map(alive, folder.iterdir())) if folder.is_dir() else False
