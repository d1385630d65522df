"""A recipe that hpcstack itself writes: its name, its place, its file.

Tested in tests/unit/adopt/test_adopt_image.py and tests/unit/draft/test_draft.py.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError
from hpcstack.core.files import read_text, write_text, writing_below
from hpcstack.recipe.catalog import SUFFIX
from hpcstack.recipe.fields import NAME, VERSION

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.core.sharing import Sharing
    from hpcstack.recipe.catalog import Catalog

MAX_RECIPE = 1 << 20  # bytes


def place_new_recipe(folder: Path, name: str, version: str, catalog: Catalog) -> tuple[str, Path]:
    """Return (the full name of the stack NAME-VERSION, where its recipe goes in FOLDER).

    Raise InputError for a name or a version that no stack can have, and where another file of
    CATALOG holds that stack.
    """
    for what, part, pattern in (("name", name, NAME), ("version", version, VERSION)):
        if not re.fullmatch(pattern, part):
            raise InputError(
                f"--as: {part!r} is not the {what} of a stack",
                "as in: --as mytorch/2024.1",
                page="write-a-recipe",
            )
    full_name = f"{name}-{version}"
    path = folder / f"{full_name}{SUFFIX}"
    other = catalog.names().get(full_name)
    if other and other.resolve() != path.resolve():
        raise InputError(
            f"there is a stack {full_name} already, in {other}",
            "--as another NAME/VERSION",
            page="write-a-recipe",
        )
    return full_name, path


def write_new_recipe(path: Path, text: str, sharing: Sharing) -> bool:
    """Write TEXT as the new file PATH. Return False where the same recipe is there already.

    Raise InputError where another one is.
    """
    if os.path.lexists(path):
        if path.is_file() and read_text(path, MAX_RECIPE) == text:
            return False
        raise InputError(
            f"{path} is there already, and is another recipe",
            "--as another NAME/VERSION",
            page="write-a-recipe",
        )
    with writing_below(path.parent, "the recipe was not written", sharing):
        write_text(path, text, sharing=sharing)
    return True
