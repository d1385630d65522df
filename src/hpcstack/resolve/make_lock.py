"""Choose the lock that a verb works with.

That is the one that is there, a first one, or what is known without one.

Tested in tests/unit/lock/test_known.py and tests/integration/test_ngc_inside.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from hpcstack.core.errors import InputError, RegistryError
from hpcstack.lock.diff import diff_locks
from hpcstack.lock.file import LockFile
from hpcstack.lock.known import make_known_lock
from hpcstack.lock.model import TEMPLATE_VERSION
from hpcstack.recipe.adopted import refuse_adopted
from hpcstack.resolve.base import resolve_base
from hpcstack.resolve.kept_versions import keep_all_but, list_added
from hpcstack.resolve.signed_base import record_signature

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpcstack.build.workbench import Workbench
    from hpcstack.core.progress import Say
    from hpcstack.lock.diff import Difference
    from hpcstack.lock.model import Lock
    from hpcstack.oci.client import Registry
    from hpcstack.recipe.catalog import Recipe
    from hpcstack.site.load import Site


def choose_added(lock: Lock | None, only: Sequence[str]) -> tuple[str, ...]:
    """Return those packages of ONLY that LOCK adds to its base; none without a lock."""
    added = list_added(lock) if lock else set()
    return tuple(name for name in only if canonicalize_name(name) in added)


def lock_anew(
    recipe: Recipe, only: Sequence[str], bench: Workbench
) -> tuple[Lock, list[Difference]]:
    """Return a lock of RECIPE in which none but the packages ONLY have moved, and what has moved.

    The base stays, and no registry is asked. Nothing is written. Raise InputError where there is no
    lock, or it does not fit: see `keep_all_but`.
    """
    from hpcstack.resolve.packages import resolve_packages

    refuse_adopted(recipe)
    stack = recipe.stack
    had = LockFile(recipe, bench.site).read_unedited()
    if had is None:
        raise InputError(
            f"{stack.full_name} has no lock that could be kept",
            f"hpcstack lock {stack.full_name}",
            page="new-ngc-month",
        )

    kept = keep_all_but(stack, had, only)
    changes = {"spec_sha256": stack.checksum(), "template_version": TEMPLATE_VERSION}
    start = had.model_copy(update=changes)
    if had.spec_sha256 != start.spec_sha256:
        start = forget_packages(start)  # for a platform that cannot be asked here, they are open
    lock = _with_project(recipe, resolve_packages(stack, start, bench, kept=kept))
    return lock, diff_locks(had, lock)


def forget_packages(lock: Lock) -> Lock:
    """Return LOCK with the packages of each platform open."""
    kinds = ("apt", "dnf", "pip", "pip_build", "conda", "left_out")
    unresolved = dict.fromkeys(kinds)
    platforms = {
        name: platform.model_copy(update=unresolved)
        for name, platform in lock.base.platforms.items()
    }
    return lock.model_copy(update={"base": lock.base.model_copy(update={"platforms": platforms})})


def make_lock(recipe: Recipe, bench: Workbench, *, base_only: bool = False) -> Lock:
    """Return a new lock of RECIPE; nothing is written.

    With BASE_ONLY, only the registry is asked, and `unresolved` lists what that leaves open. Raise
    InputError for an adopted recipe.
    """
    from hpcstack.resolve.packages import resolve_packages

    refuse_adopted(recipe)
    lock = record_signature(resolve_base(recipe.stack, bench.registry), recipe.stack.base, bench)
    if base_only:
        return lock
    before = None
    if len(lock.base.platforms) > 1:  # other platforms may have been resolved on other machines
        before = LockFile(recipe, bench.site).read_unedited()
    return _with_project(recipe, resolve_packages(recipe.stack, lock, bench, before))


def _with_project(recipe: Recipe, whole: Lock) -> Lock:
    """Return the WHOLE lock with the checksum of RECIPE's project, which allows all of its files."""
    from hpcstack.resolve.packages import refuse_other_files

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
