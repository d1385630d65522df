"""Stacks whose image was taken over: where it came from, and why it is not built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError

if TYPE_CHECKING:
    from hpcstack.recipe.catalog import Recipe
    from hpcstack.recipe.model import Stack


def describe_adopted(stack: Stack) -> str:
    """Where an adopted image came from, in words; empty for a stack that is built."""
    adopted = stack.adopted
    return f"{adopted.source}, sha256 {adopted.sha256[:12]}" if adopted else ""


def refuse_adopted(recipe: Recipe) -> None:
    """InputError for a stack whose image was taken over: nothing says how it was made."""
    stack = recipe.stack
    if stack.adopted:
        raise InputError(
            f"{stack.full_name} was adopted from {stack.adopted.source}: nothing says how its "
            f"image was made, so it is "
            "not built, and its lock only says what is in it",
            f"to build one like it: in {recipe.path}, drop `adopted`, name what to build on in "
            f"`base.image`, and write "
            f"what was added, e.g. packages: {{pip: [NAME==VERSION]}}; hpcstack sbom "
            f"{stack.full_name} lists it",
        )
