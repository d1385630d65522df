"""Find what is newer than what recipes are locked to: tags of their bases, the same tag with
another digest, and packages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError, ProblemsError
from hpcstack.hardware.facts import read_facts_of
from hpcstack.lock.diff import diff_contents, diff_locks, find_newer_tags
from hpcstack.lock.file import LockFile
from hpcstack.lock.known import read_base_environment

if TYPE_CHECKING:
    from hpcstack.build.workbench import Workbench
    from hpcstack.core.progress import Say
    from hpcstack.lock.diff import Difference
    from hpcstack.lock.model import Lock
    from hpcstack.oci.client import Registry
    from hpcstack.recipe.catalog import Catalog, Recipe
    from hpcstack.recipe.model import Base
    from hpcstack.site.load import Site


PACKAGES = ("apt", "dnf", "conda", "pip", "source")  # sections of differences


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


@dataclass
class NewerBases:
    """Finds what is newer for one recipe after another; each registry is asked for a thing once."""

    site: Site
    registry: Registry
    tags: dict[str, list[str]] = field(default_factory=dict)  # {repository: its tags}
    facts: dict[str, dict[str, str]] = field(default_factory=dict)  # {image: what it contains}
    moved: dict[str, tuple[str, str]] = field(default_factory=dict)  # {image: its digest, its day}

    def find(self, recipe: Recipe) -> NewerBase:
        """Return what is newer for RECIPE. Raise RegistryError where its registry says nothing."""
        base = recipe.stack.base
        repository = f"{base.registry}/{base.repository}"
        if repository not in self.tags:
            self.tags[repository] = self.registry.tags(base)
        newer = []
        if base.tag:  # a base that is named by its digest alone has no newer one
            newer = find_newer_tags(base.tag, self.tags[repository])

        lock = LockFile(recipe, self.site).read()
        newest = ""
        changes: list[Difference] = []
        if newer:
            newest = newer[-1]
            had = read_facts_of(read_base_environment(recipe, lock))
            image = f"{repository}:{newest}"
            if image not in self.facts:
                latest = base.model_copy(update={"image": image, "platforms": base.platforms[:1]})
                self.facts[image] = self.registry.facts(latest)
            changes = list(diff_contents(had, self.facts[image]))
        moved = self._find_moved(base, lock) if lock else ("", "")
        return NewerBase(
            recipe.stack.full_name, repository, base.tag, newest, newer, changes, *moved
        )

    def _find_moved(self, base: Base, lock: Lock) -> tuple[str, str]:
        """Return the digest of BASE's tag and the day of its image, where LOCK has another digest.

        Two empty texts where it has the same, or BASE names its digest itself.
        """
        locked = (lock.base.registry, lock.base.repository, lock.base.tag)
        if base.digest or locked != (base.registry, base.repository, base.tag):
            return "", ""
        if base.image not in self.moved:
            self.moved[base.image] = self.registry.digest(base), ""
        digest, day = self.moved[base.image]
        if digest == lock.base.index_digest:
            return "", ""
        if not day:
            configs = self.registry.look_up(base).configs
            day = configs[base.platforms[0]].get("created", "")
            self.moved[base.image] = digest, day
        return digest, day


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
