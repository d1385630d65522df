"""Newer tags of the bases that recipes are locked to, and what would change with the newest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core.errors import ProblemsError
from hpcstack.hardware.facts import facts_of
from hpcstack.lock.diff import diff_contents, find_newer_tags
from hpcstack.lock.file import LockFile
from hpcstack.lock.known import base_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hpcstack.lock.diff import Difference
    from hpcstack.oci.client import Registry
    from hpcstack.recipe.catalog import Catalog, Recipe
    from hpcstack.site.load import Site


@dataclass(frozen=True)
class NewerBase:
    """A stack's base, the tags that came after its own, and what the newest brings."""

    stack: str
    base: str
    tag: str
    newest: str
    newer: list[str]
    changes: list[Difference]


def locked_recipes(catalog: Catalog, site: Site, say: Callable[[str], None]) -> list[Recipe]:
    """The recipes that have a lock here; one that cannot be read is told and left out."""
    out = []
    for path in catalog.files():
        try:
            built = [recipe for recipe in catalog.read(path) if not recipe.stack.adopted]
            out += [recipe for recipe in built if LockFile(recipe, site).path.exists()]
        except ProblemsError as error:
            say(f"{path.name} is left out: {error.problems[0]}")
    return out


def find_newer(recipes: Sequence[Recipe], site: Site, registry: Registry) -> Iterator[NewerBase]:
    """For each of RECIPES; each repository is asked for its tags once."""
    tags: dict[str, list[str]] = {}
    for recipe in recipes:
        base = recipe.stack.base
        repository = f"{base.registry}/{base.repository}"
        if repository not in tags:
            tags[repository] = registry.tags(base)
        found = find_newer_tags(base.tag, tags[repository]) if base.tag else []
        changes: list[Difference] = []
        if found:
            had = facts_of(base_environment(recipe, LockFile(recipe, site).read()))
            latest = base.model_copy(
                update={"image": f"{repository}:{found[-1]}", "platforms": base.platforms[:1]}
            )
            changes = list(diff_contents(had, registry.facts(latest)))
        yield NewerBase(
            recipe.stack.full_name, repository, base.tag, found[-1] if found else "", found, changes
        )
