"""Which own checks a stack has here: those of its recipe, and those of the site that are for it."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from hpcstack.recipe.own_checks import OF_SITE, OF_STACK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.recipe.model import Stack
    from hpcstack.recipe.own_checks import OwnCheck
    from hpcstack.site.load import Site


def list_own_checks(stack: Stack, site: Site) -> dict[str, OwnCheck]:
    """Return {code: check} of the own checks that SITE and the recipe of STACK have for it."""
    out: dict[str, OwnCheck] = {}
    for check in site.checks:
        if any(fnmatchcase(stack.full_name, pattern) for pattern in check.stacks):
            out[f"{OF_SITE}.{check.name}"] = check
    for recipes in stack.checks:
        out[f"{OF_STACK}.{recipes.name}"] = recipes
    return out


def list_own_names(checks: Mapping[str, OwnCheck]) -> list[str]:
    """Return every word that names some of CHECKS: their families and codes."""
    families = dict.fromkeys(code.partition(".")[0] for code in checks)
    return [*families, *checks]
