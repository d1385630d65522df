"""Caches: imported bases, finished steps of builds, partial downloads, keys that are known.

Tested in tests/unit/publish/test_gc.py and tests/unit/oci/test_download.py.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core import descriptors
from hpcstack.core.dirs import find_cache_home
from hpcstack.core.files import make_private_folder
from hpcstack.core.lease import make_label, may_have_living_owner, remove_leftovers
from hpcstack.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcstack.lock.model import Lock
    from hpcstack.site.load import Site

SHARED = "cache"  # the folder in the store


def cache_of(site: Site) -> Store:
    """Return the cache of bases.

    Where the site has a `group`, its members share one in the site's store. Whoever builds on what
    lies there asks whose it is (build/base.py).
    Else, and for a user with a store of his own, it is the user's own.
    """
    if not site.sharing.has_group or site.own_store != site.store:
        return open_own_cache(site)
    shared = open_shared_cache(site)
    with shared.acting("no cache"):
        site.sharing.make_own_names_folder(shared.top)
        for name in ("partial", "busy", "offline", "keys"):
            site.sharing.make_folder(shared.top / name)
    return shared


def open_shared_cache(site: Site) -> Store:
    """Return the cache in the site's store, which its group shares and others may read."""
    return Store(site.store / SHARED, sharing=site.sharing)


def open_own_cache(site: Site) -> Store:
    """Return the user's own cache, below `build.cachedir` where the site names one.

    What lies there is trusted, so it is the user's alone: StoreError where somebody else has made
    it, or can put something else in its place. Kept steps always lie here, since an overlay needs
    folders of one's own group; one of them may have a set-uid program.
    """
    folder = find_cache_home() / "hpcstack/bases"
    remedy = "set XDG_CACHE_HOME to a folder of your own, or build.cachedir in site.yaml"
    if site.build.cachedir:
        # Others may write to the folder that a site names, so each user has one of his own in it.
        folder = Path(site.build.cachedir) / f"hpcstack-bases-{os.getuid()}"
        remedy = "remove it, or name another build.cachedir in site.yaml"
    store = Store(folder)
    with store.acting("no cache"):
        if not site.build.cachedir:
            _close_to_group(folder.parent)
        make_private_folder(folder, remedy)
    return store


def _close_to_group(folder: Path) -> None:
    """Make FOLDER, our own in the user's cache, for nobody else to write.

    A umask of 002 has left it open where the user's first group is one of many users.
    """
    descriptors.make_folder(folder)
    with descriptors.hold_folder(folder) as descriptor:
        about = os.fstat(descriptor)
        if about.st_uid == os.geteuid() and about.st_mode & 0o022:
            os.fchmod(descriptor, about.st_mode & 0o755)


def name_offline_folder(site: Site, lock: Lock, platform: str) -> Path:
    """Return where a bundle's base and packages for a locked stack lie."""
    name = f"{lock.digest()[:24]}-{platform.replace('/', '-')}"
    return cache_of(site).top / "offline" / name


def mark_used(path: Path) -> None:
    """Set the change time of PATH to now, so that gc sees that it is used.

    Setting its mode to what it is does so. Its modification time stays: that goes into images.
    """
    with contextlib.suppress(OSError):  # somebody else's
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.fchmod(descriptor, os.fstat(descriptor).st_mode & 0o7777)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def hold_cache(cache: Store) -> Iterator[None]:
    """Keep gc from taking anything out of CACHE meanwhile."""
    folder = cache.top / "busy"
    descriptors.make_folder(folder)
    remove_leftovers(folder, "", descriptors.remove_file)
    mark = folder / f"{make_label()}{uuid.uuid4().hex[:8]}"
    descriptors.create_file(mark, 0o644).close()
    try:
        yield
    finally:
        descriptors.remove_file(mark)


def is_busy(cache: Store) -> bool:
    """Whether somebody is importing or building with what CACHE holds."""
    folder = cache.top / "busy"
    return folder.is_dir() and any(may_have_living_owner(mark) for mark in folder.iterdir())
