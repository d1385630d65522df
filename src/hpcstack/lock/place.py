"""Where the lock of a recipe lies."""

from __future__ import annotations

import os
from pathlib import Path

from hpcstack import data
from hpcstack.site import Site
from hpcstack.spec.catalog import Recipe

LOCK_SUFFIX = ".lock.json"


def lock_path(recipe: Recipe, site: Site) -> Path:
    """Beside a recipe in a folder that can be written, else (the package's own) in the site's lock directory."""
    name, folder = recipe.stack.full_name + LOCK_SUFFIX, recipe.path.resolve().parent
    ours = folder == data.folder("recipes").resolve()
    if ours:
        return site.lock_dir / name
    # A lock that is there counts for everybody, whoever may write it.
    return folder / name if (folder / name).exists() or os.access(folder, os.W_OK) else site.lock_dir / name
