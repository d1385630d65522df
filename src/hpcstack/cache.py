"""The user's own cache: imported bases, finished steps, what is being fetched, keys that are known."""

from __future__ import annotations

import os
from pathlib import Path

from hpcstack.site import Site
from hpcstack.store import Store


def cache_of(site: Site) -> Store:
    """The cache, beside Apptainer's where the site names one."""
    own = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    shared = Path(site.build.cachedir) / f"hpcstack-bases-{os.getuid()}"  # each user's own: what lies there is trusted
    return Store(shared if site.build.cachedir else Path(own) / "hpcstack/bases")
