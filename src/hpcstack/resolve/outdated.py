"""Find what is newer than what recipes are locked to: tags of their bases, the same tag with
another digest, and packages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError, ProblemsError
from hpcstack.hardware.facts import read_facts_of
from hpcstack.lock.diff import diff_contents, diff_locks, find_newer_tags
from hpcstack.lock.file import LockFile
from hpcstack.lock.known import read_base_environment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hpcstack.build.workbench import Workbench
    from hpcstack.core.progress import Say
    from hpcstack.lock.diff import Difference
    from hpcstack.lock.model import Lock
    from hpcstack.oci.client import Registry
    from hpcstack.recipe.catalog import Catalog, Recipe
    from hpcstack.recipe.model import Base
    from hpcstack.site.load import Site


PACKAGES = ("apt", "conda", "pip", "source")  # sections of differences


@dataclass(frozen=True)
class NewerBase:
    """The tags of a stack's base that are newer than its own, and what the newest one changes.

    MOVED_TO is the digest that its own tag has now, where another is locked; so NVIDIA publishes
    what it has rebuilt for security. MOVED_ON is the day on which that image was made, as it says
    itself; empty where it does not.
    """

    stack: str
    base: str  # REGISTRY/REPOSITORY
    tag: str
    newest: str  # empty if there is none
    newer: list[str]
    changes: list[Difference]
    moved_to: str = ""
    moved_on: str = ""


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

        lock = LockFile(recipe, site).read()
        newest = ""
        changes: list[Difference] = []
        if newer:
            newest = newer[-1]
            had = read_facts_of(read_base_environment(recipe, lock))
            latest = base.model_copy(
                update={"image": f"{repository}:{newest}", "platforms": base.platforms[:1]}
            )
            changes = list(diff_contents(had, registry.facts(latest)))
        moved = _find_moved(base, lock, registry) if lock else ("", "")
        yield NewerBase(
            recipe.stack.full_name, repository, base.tag, newest, newer, changes, *moved
        )


def _find_moved(base: Base, lock: Lock, registry: Registry) -> tuple[str, str]:
    """Return the digest of BASE's tag and the day of its image, where LOCK has another digest.

    Two empty texts where it has the same, or BASE names its digest itself.
    """
    same_tag = (lock.base.registry, lock.base.repository, lock.base.tag) == (
        base.registry,
        base.repository,
        base.tag,
    )
    if base.digest or not same_tag:
        return "", ""
    digest = registry.digest(base)
    if digest == lock.base.index_digest:
        return "", ""

    configs = registry.look_up(base).configs
    return digest, configs[base.platforms[0]].get("created", "")


def find_newer_packages(recipe: Recipe, bench: Workbench) -> list[Difference]:
    """Return which packages and sources a new lock of RECIPE would have in other versions.

    The base's own tools are asked, inside the base that is locked. Nothing is written. Raise
    InputError where RECIPE is not locked.
    """
    from hpcstack.resolve.packages import resolve_packages

    stack = recipe.stack
    lock = LockFile(recipe, bench.site).read()
    if lock is None:
        raise InputError(f"{stack.full_name} is not locked", f"hpcstack lock {stack.full_name}")
    now = resolve_packages(stack, lock, bench)
    return [one for one in diff_locks(lock, now) if one.section in PACKAGES]
