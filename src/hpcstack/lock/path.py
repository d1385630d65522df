"""Finds where the lock of a recipe lies.

Tested in tests/unit/publish/test_attachments.py and tests/hostile/test_neighbours.py.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hpcstack.core import data
from hpcstack.core.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.recipe.catalog import Recipe
    from hpcstack.site.load import Site

LOCK_SUFFIX = ".lock.json"


def lock_path(recipe: Recipe, site: Site, *, to_write: bool = False) -> Path:
    """Return where the lock of RECIPE lies, or with TO_WRITE where one is written.

    It lies beside its recipe where that folder can be written. Else it lies in the site's lock
    directory: so do the locks of hpcstack's own recipes, and all of them where the site says so
    (`locks: site`). Users who may not write to that directory have one of their own. The site's
    lock counts for them until they have made one.

    InputError where a link lies there: git carries links, and a lock must not be written to
    wherever one leads.
    """
    name = recipe.stack.full_name + LOCK_SUFFIX
    folder = recipe.path.resolve().parent
    path = folder / name

    is_own_recipe = folder == data.find_data_folder("recipes").resolve()
    # A lock that is there counts for everybody, also for those who may not write to the folder.
    can_lie_beside = os.path.lexists(path) or os.access(folder, os.W_OK)
    if site.locks == "site" or is_own_recipe or not can_lie_beside:
        path = site.lock_dir / name
        own = site.own_lock_dir / name
        if to_write or own.exists():
            path = own

    if path.is_symlink():
        raise InputError(
            f"{path} is a symbolic link: a lock is a file of its own",
            f"look where it leads, then: rm {path}",
        )
    return path
