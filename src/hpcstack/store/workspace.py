"""A private folder on local disk for one build, which is removed afterwards.

Tested in tests/hostile/test_gifts.py.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.errors import StoreError
from hpcstack.core.files import remove_tree
from hpcstack.core.lease import make_label, remove_leftovers
from hpcstack.core.sizes import show_bytes
from hpcstack.store.cache import cache_of, hold_cache
from hpcstack.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcstack.core.process import Runner
    from hpcstack.site.load import Site

PREFIX = "hpcstack-build-"


@contextlib.contextmanager
def make_workspace(site: Site, runner: Runner, needed: int) -> Iterator[Path]:
    """Yield a new folder on local disk, and remove it afterwards.

    Folders of killed builds are removed, too, and gc takes nothing out of the caches meanwhile.
    StoreError where fewer than NEEDED bytes are free.
    """
    parent = Path(site.build.tmpdir or tempfile.gettempdir())
    with Store(site.own_store, sharing=site.sharing).acting("no folder to build in"):
        free = shutil.disk_usage(parent).free
        if free < needed:
            raise StoreError(
                f"{parent} has {show_bytes(free)} free, a build needs about {show_bytes(needed)}",
                "make room, or name another folder: build.tmpdir in site.yaml, or $TMPDIR",
                page="free-disk-space",
            )
        remove_leftovers(parent, PREFIX, lambda old: _remove_workspace(old, runner))
        work = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{make_label()}", dir=parent))
    try:
        with hold_cache(cache_of(site)):
            yield work
    finally:
        _remove_workspace(work, runner)


def _remove_workspace(work: Path, runner: Runner) -> None:
    """Remove WORK, with the files in it that mapped users own."""
    remove_tree(work)
    # A build in a user namespace may leave files of other user IDs, which only a namespace with
    # the same mapping can remove.
    if work.exists() and runner.has("unshare"):
        runner.output(["unshare", "--map-root-user", "--map-auto", "rm", "-rf", str(work)])
