"""Which lock a verb works with: the one that is there, a first one, or what can be known without
one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.core.errors import RegistryError
from hpcstack.lock.file import LockFile
from hpcstack.lock.known import known_lock
from hpcstack.recipe.adopted import refuse_adopted
from hpcstack.resolve.base import resolve_base
from hpcstack.resolve.signed_base import record_signature

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcstack.build.workbench import Workbench
    from hpcstack.lock.model import Lock
    from hpcstack.oci.client import Registry
    from hpcstack.recipe.catalog import Recipe
    from hpcstack.site.load import Site


def make_lock(recipe: Recipe, bench: Workbench, *, base_only: bool = False) -> Lock:
    """A new lock.

    BASE_ONLY asks the registry alone and says in `unresolved` what that leaves open.
    """
    from hpcstack.resolve.packages import resolve_packages

    refuse_adopted(recipe)
    lock = record_signature(resolve_base(recipe.stack, bench.registry), recipe.stack.base, bench)
    if base_only:
        return lock
    before = LockFile(recipe, bench.site).read_unedited() if len(lock.base.platforms) > 1 else None
    return resolve_packages(recipe.stack, lock, bench, before)


def lock_to_build(recipe: Recipe, bench: Workbench) -> Lock:
    """The lock that is there, or a first one, written."""
    file = LockFile(recipe, bench.site)
    if lock := file.current():
        return lock
    lock = make_lock(recipe, bench)
    path = file.write(lock)
    bench.progress(f"locked {recipe.stack.full_name} for the first time: {path}")
    beside = recipe.path.resolve().parent / path.name
    if beside != path and beside.is_file():
        bench.progress(
            f"NOTE: {beside} does not count here (`locks: site`): copy it there to keep its "
            f"versions"
        )
    return lock


def lock_to_show(
    recipe: Recipe, site: Site, registry: Registry, say: Callable[[str], None]
) -> Lock:
    """The lock that is there, or what the registry says now, which is written nowhere."""
    if lock := LockFile(recipe, site).current():
        return lock
    lock = resolve_base(recipe.stack, registry)
    name = recipe.stack.full_name
    say(
        f"{name} is not locked: this is what the registry says now (hpcstack lock {name} "
        f"writes it down)"
    )
    return lock


def lock_to_look_at(
    recipe: Recipe, site: Site, registry: Callable[[], Registry] | None, say: Callable[[str], None]
) -> Lock:
    """The same where there may be no network: without a REGISTRY that answers, what is known
    without one.

    Such a lock is `not_looked_up`, and is refused wherever something would be built of it.
    """
    if lock := LockFile(recipe, site).current():
        return lock
    if registry:
        try:
            return lock_to_show(recipe, site, registry(), say)
        except RegistryError as error:
            say(error.message)
    return known_lock(recipe.stack)
