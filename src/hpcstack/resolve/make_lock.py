"""Locks as verbs use them: made, written, read, and refused where they are not the recipe's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.core import sharing
from hpcstack.core.errors import InputError, RegistryError
from hpcstack.core.files import write_text
from hpcstack.lock import model
from hpcstack.lock.check import stale, verdict
from hpcstack.lock.known import known_lock
from hpcstack.lock.path import lock_path
from hpcstack.resolve.base import resolve
from hpcstack.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hpcstack.core.process import Runner
    from hpcstack.core.progress import Progress
    from hpcstack.lock.model import Lock
    from hpcstack.oci.client import Registry
    from hpcstack.recipe.catalog import Recipe
    from hpcstack.site.load import Site


def make_lock(
    recipe: Recipe, site: Site, registry: Registry, runner: Runner, say: Progress, *, base_only: bool = False
) -> Lock:
    """A new lock. BASE_ONLY asks the registry alone and says in `unresolved` what that leaves open."""
    lock = resolve(recipe.stack, registry)
    path = lock_path(recipe, site)
    from hpcstack.resolve.packages import settle

    before = model.read(path) if path.exists() and len(lock.base.platforms) > 1 else None
    return lock if base_only else settle(recipe.stack, lock, site, registry, runner, say, before)


def write_lock(recipe: Recipe, site: Site, lock: Lock) -> Path:
    """LOCK written where `lock_path` says."""
    assert not lock.not_looked_up
    path = lock_path(recipe, site)
    with Store(site.store).acting("the lock was not written"):
        if path.parent == site.lock_dir:
            sharing.make_folder(site.lock_dir)
        write_text(path, lock.text())
    return path


def current_lock(recipe: Recipe, site: Site) -> Lock | None:
    """The lock that is there. A stale one is refused: what is built must be what was locked."""
    path = lock_path(recipe, site)
    if not path.exists():
        return None
    lock = model.read(path)
    if reasons := stale(recipe.stack, lock):
        name = recipe.stack.full_name
        raise InputError(f"the lock of {name} is stale: {'; '.join(reasons)}", f"hpcstack lock {name}")
    return lock


def lock_to_build(recipe: Recipe, site: Site, registry: Registry, runner: Runner, say: Progress) -> Lock:
    """The lock that is there, or a first one, written."""
    if lock := current_lock(recipe, site):
        return lock
    lock = make_lock(recipe, site, registry, runner, say)
    path = write_lock(recipe, site, lock)
    say(f"locked {recipe.stack.full_name} for the first time: {path}")
    beside = recipe.path.resolve().parent / path.name
    if beside != path and beside.is_file():
        say(f"NOTE: {beside} does not count here (`locks: site`): copy it there to keep its versions")
    return lock


def lock_to_show(recipe: Recipe, site: Site, registry: Registry, say: Callable[[str], None]) -> Lock:
    """The lock that is there, or what the registry says now, which is written nowhere."""
    if lock := current_lock(recipe, site):
        return lock
    lock = resolve(recipe.stack, registry)
    name = recipe.stack.full_name
    say(f"{name} is not locked: this is what the registry says now (hpcstack lock {name} writes it down)")
    return lock


def lock_to_look_at(
    recipe: Recipe, site: Site, registry: Callable[[], Registry] | None, say: Callable[[str], None]
) -> Lock:
    """The same where there may be no network: without a REGISTRY that answers, what is known without one.

    Such a lock is `not_looked_up`, and is refused wherever something would be built of it.
    """
    if lock := current_lock(recipe, site):
        return lock
    if registry:
        try:
            return lock_to_show(recipe, site, registry(), say)
        except RegistryError as error:
            say(error.message)
    return known_lock(recipe.stack)


def locked_only(recipe: Recipe, site: Site, platform: str) -> Lock:
    """The lock for `build --locked`. InputError names all that speaks against it."""
    name = recipe.stack.full_name
    if reasons := verdict(recipe, site).refused(platform):
        raise InputError(f"{name} cannot be built as locked: {'; '.join(reasons)}", f"hpcstack lock {name}")
    return model.read(lock_path(recipe, site))
