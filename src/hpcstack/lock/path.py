"""Where the lock of a recipe lies."""

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
    """Beside a recipe in a folder that can be written, else (the package's own) in the site's lock
    directory; always there where the site says so (`locks: site`).

    Who may not write there has a lock directory of his own; the site's lock counts until he has
    made one.

    InputError where a link is there: git carries links, and a lock that is written must not land
    where one leads.
    """
    name, folder = recipe.stack.full_name + LOCK_SUFFIX, recipe.path.resolve().parent
    path = folder / name
    if (
        site.locks == "site"
        or folder == data.find_data_folder("recipes").resolve()
        or not (os.path.lexists(path) or os.access(folder, os.W_OK))
    ):
        path = site.lock_dir / name
        own = site.own_lock_dir / name
        if to_write or own.exists():
            path = own
    if path.is_symlink():
        raise InputError(
            f"{path} is a symbolic link: a lock is a file of its own",
            f"look where it leads, then: rm {path}",
        )
    return path  # one that is there counts for everybody, whoever may write it
