"""Find newer tags of the bases that recipes are locked to, and what the newest would change.

Tested in tests/integration/test_ngc_registry.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core.errors import ProblemsError
from hpcstack.hardware.facts import read_facts_of
from hpcstack.lock.diff import diff_contents, find_newer_tags
from hpcstack.lock.file import LockFile
from hpcstack.lock.known import read_base_environment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hpcstack.core.progress import Say
    from hpcstack.lock.diff import Difference
    from hpcstack.oci.client import Registry
    from hpcstack.recipe.catalog import Catalog, Recipe
    from hpcstack.site.load import Site


@dataclass(frozen=True)
class NewerBase:
    """The tags of a stack's base that are newer than its own, and what the newest one changes."""

    stack: str
    base: str  # REGISTRY/REPOSITORY
    tag: str
    newest: str  # empty if there is none
    newer: list[str]
    changes: list[Difference]


def list_locked_recipes(catalog: Catalog, site: Site, say: Say) -> list[Recipe]:
    """Return the recipes that have a lock, without adopted ones, which follow no registry.

    A file that cannot be read is left out, and SAY is told why.
    """
    out = []
    for path in catalog.files():
        try:
            for recipe in catalog.read(path):
                if not recipe.stack.adopted and LockFile(recipe, site).path.exists():
                    out.append(recipe)
        except ProblemsError as error:
            say(f"{path.name} is left out: {error.problems[0]}")
    return out


def find_newer(recipes: Sequence[Recipe], site: Site, registry: Registry) -> Iterator[NewerBase]:
    """Yield what is newer for each of RECIPES. Each repository is asked for its tags once."""
    tags: dict[str, list[str]] = {}
    for recipe in recipes:
        base = recipe.stack.base
        repository = f"{base.registry}/{base.repository}"
        if repository not in tags:
            tags[repository] = registry.tags(base)
        newer = []
        if base.tag:  # a base that is named by its digest alone has no newer one
            newer = find_newer_tags(base.tag, tags[repository])

        newest = ""
        changes: list[Difference] = []
        if newer:
            newest = newer[-1]
            had = read_facts_of(read_base_environment(recipe, LockFile(recipe, site).read()))
            latest = base.model_copy(
                update={"image": f"{repository}:{newest}", "platforms": base.platforms[:1]}
            )
            changes = list(diff_contents(had, registry.facts(latest)))
        yield NewerBase(recipe.stack.full_name, repository, base.tag, newest, newer, changes)
