"""Choose the lock that a verb works with.

That is the one that is there, a first one, or what is known without one.

Tested in tests/unit/lock/test_known.py and tests/integration/test_ngc_inside.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.core.errors import RegistryError
from hpcstack.lock.file import LockFile
from hpcstack.lock.known import make_known_lock
from hpcstack.recipe.adopted import refuse_adopted
from hpcstack.resolve.base import resolve_base
from hpcstack.resolve.signed_base import record_signature

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcstack.build.workbench import Workbench
    from hpcstack.core.progress import Say
    from hpcstack.lock.model import Lock
    from hpcstack.oci.client import Registry
    from hpcstack.recipe.catalog import Recipe
    from hpcstack.site.load import Site


def make_lock(recipe: Recipe, bench: Workbench, *, base_only: bool = False) -> Lock:
    """Return a new lock of RECIPE; nothing is written.

    With BASE_ONLY, only the registry is asked, and `unresolved` lists what that leaves open. Raise
    InputError for an adopted recipe.
    """
    from hpcstack.resolve.packages import refuse_other_files, resolve_packages

    refuse_adopted(recipe)
    lock = record_signature(resolve_base(recipe.stack, bench.registry), recipe.stack.base, bench)
    if base_only:
        return lock
    before = None
    if len(lock.base.platforms) > 1:  # other platforms may have been resolved on other machines
        before = LockFile(recipe, bench.site).read_unedited()
    whole = resolve_packages(recipe.stack, lock, bench, before)
    if not recipe.project:
        return whole
    refuse_other_files(recipe.project, whole)
    return whole.model_copy(update={"project_sha256": f"sha256:{recipe.project.sha256}"})


def lock_to_build(recipe: Recipe, bench: Workbench) -> Lock:
    """Return RECIPE's lock. If there is none, make a first one and write it."""
    file = LockFile(recipe, bench.site)
    lock = file.current()
    if lock:
        return lock

    lock = make_lock(recipe, bench)
    path = file.write(lock)
    bench.progress(f"locked {recipe.stack.full_name} for the first time: {path}")

    beside = recipe.path.resolve().parent / path.name
    if beside != path and beside.is_file():
        bench.progress(
            f"NOTE: {beside} is not used here (`locks: site` in site.yaml): to keep its versions, "
            f"copy it to {path}"
        )
    return lock


def lock_to_show(recipe: Recipe, site: Site, registry: Registry, say: Say) -> Lock:
    """Return RECIPE's lock, or what the registry says now; nothing is written."""
    lock = LockFile(recipe, site).current()
    if lock:
        return lock

    lock = resolve_base(recipe.stack, registry)
    name = recipe.stack.full_name
    say(
        f"{name} is not locked: this is what the registry says now (to write it down: hpcstack "
        f"lock {name})"
    )
    return lock


def lock_to_look_at(
    recipe: Recipe, site: Site, registry: Callable[[], Registry] | None, say: Say
) -> Lock:
    """Return RECIPE's lock, or else what the registry says, or else what is known without either.

    REGISTRY makes a client; without it, or if it does not answer, the last case holds. Such a lock
    is marked `not_looked_up`, and is refused wherever something would be built from it.
    """
    lock = LockFile(recipe, site).current()
    if lock:
        return lock
    if registry:
        try:
            return lock_to_show(recipe, site, registry(), say)
        except RegistryError as error:
            say(error.message)
    return make_known_lock(recipe.stack)
