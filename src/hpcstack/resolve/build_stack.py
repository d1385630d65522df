"""From a recipe to its image: choose the lock, find out what to build, and build it if needed.

Tested in tests/unit/cli/test_locks.py and tests/integration/test_engines.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.build.request import find_built, request_build
from hpcstack.core.outputs import new_file
from hpcstack.lock.file import LockFile
from hpcstack.recipe.adopted import refuse_adopted
from hpcstack.resolve.make_lock import lock_to_build, lock_to_show
from hpcstack.resolve.signed_base import refuse_unsigned

if TYPE_CHECKING:
    from hpcstack.build.options import BuildOptions
    from hpcstack.build.request import BuildRequest
    from hpcstack.build.workbench import Workbench
    from hpcstack.recipe.catalog import Recipe
    from hpcstack.store.artifact import Artifact


@dataclass(frozen=True)
class BuiltStack:
    """The image of a stack."""

    artifact: Artifact
    built: bool  # False if the store already had it
    request: BuildRequest
    sif: Path | None  # None if no SIF was asked for


def request_stack(
    recipe: Recipe, options: BuildOptions, bench: Workbench, *, dry: bool = False
) -> BuildRequest:
    """Return what is to be built of RECIPE.

    A lock is made and written if there is none. With DRY, nothing is written, and a signature that
    is missing is not refused. Raise InputError for an adopted recipe, which is never built.
    """
    refuse_adopted(recipe)

    file = LockFile(recipe, bench.site)
    if options.locked:
        lock = file.exact(options.platform or recipe.stack.base.platforms[0])
    elif dry:
        lock = lock_to_show(recipe, bench.site, bench.registry, bench.progress)
    elif options.offline:
        lock = file.offline()
    else:
        lock = lock_to_build(recipe, bench)
    if not dry:
        refuse_unsigned(lock, bench.site)

    return request_build(recipe, lock, bench.site, bench.runner, options)


def build_stack(recipe: Recipe, options: BuildOptions, bench: Workbench) -> BuiltStack:
    """Return the image of RECIPE in the store, and build it if it is not there."""
    sif = None
    if options.sif:
        sif = new_file(Path(options.sif))  # a bad path is refused now, not after the build

    request = request_stack(recipe, options, bench)
    artifact = None
    built = False
    if not options.fresh:
        artifact = find_built(request, bench.store)
    if artifact is None:
        from hpcstack.build.build import build_image

        artifact, built = build_image(request, bench)

    if sif:
        from hpcstack.store.sif import assemble_sif

        sif = assemble_sif(artifact.image, artifact.platform, Path(options.sif), bench.runner)
    return BuiltStack(artifact, built, request, sif)
