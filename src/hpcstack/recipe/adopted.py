"""Stacks whose image was adopted: where it came from, and why it is not built.

Tested in tests/unit/adopt/test_adopt_image.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError

if TYPE_CHECKING:
    from hpcstack.recipe.catalog import Recipe
    from hpcstack.recipe.model import Stack


def describe_adopted(stack: Stack) -> str:
    """Return where an adopted image came from, to be shown; empty for a stack that is built."""
    adopted = stack.adopted
    if not adopted:
        return ""
    return f"{adopted.source}, sha256 {adopted.sha256[:12]}"


def refuse_adopted(recipe: Recipe) -> None:
    """Raise InputError for a stack whose image was adopted: nothing says how it was made."""
    stack = recipe.stack
    if stack.adopted:
        raise InputError(
            f"{stack.full_name} was adopted from {stack.adopted.source}: nothing says how its "
            "image was made, so it is not built, and its lock only says what is in it",
            f"to build one like it: in {recipe.path}, drop `adopted`, name what to build on in "
            "`base.image`, and write what was added, e.g. packages: {pip: [NAME==VERSION]}; "
            f"hpcstack sbom {stack.full_name} lists it",
            page="adopt-an-image",
        )
