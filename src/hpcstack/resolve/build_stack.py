"""From a recipe to its image: the lock that counts, what is to be built, and the image in the
store.
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
    from hpcstack.build.request import BuildRequest
    from hpcstack.build.workbench import Workbench
    from hpcstack.recipe.catalog import Recipe
    from hpcstack.store.artifact import Artifact


@dataclass(frozen=True)
class BuildOptions:
    """How a stack is to be built, in the words of the command line."""

    platform: str = ""
    engine: str = ""
    no_cache: bool = False
    offline: bool = False
    locked: bool = False
    sif: str = ""
    squash: bool = False

    def words(self) -> list[str]:
        """The same on a command line, but for the SIF."""
        flags = {
            "--no-cache": self.no_cache,
            "--offline": self.offline,
            "--locked": self.locked,
            "--squash": self.squash,
        }
        valued = {"--platform": self.platform, "--engine": self.engine}
        given = [word for name, value in valued.items() if value for word in (name, value)]
        return [*(name for name, value in flags.items() if value), *given]


@dataclass(frozen=True)
class BuiltStack:
    """An image, whether it had to be BUILT, what it was asked for as, and the SIF around it (None:
    not asked for).
    """

    artifact: Artifact
    built: bool
    request: BuildRequest
    sif: Path | None


def request_stack(
    recipe: Recipe, options: BuildOptions, bench: Workbench, *, dry: bool = False
) -> BuildRequest:
    """What would be built of RECIPE.

    DRY: nothing is written, so that a first lock is only looked at.
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
    return request_build(
        recipe,
        lock,
        bench.site,
        bench.runner,
        options.platform,
        options.engine,
        offline=options.offline,
        squash=options.squash,
    )


def build_stack(recipe: Recipe, options: BuildOptions, bench: Workbench) -> BuiltStack:
    """The image of RECIPE in the store: the one that is there, or a new one."""
    sif = new_file(Path(options.sif)) if options.sif else None  # told now, not after the build
    request = request_stack(recipe, options, bench)
    artifact, built = (None if options.no_cache else find_built(request, bench.store)), False
    if artifact is None:
        from hpcstack.build.build import BuildPolicy, build_image

        artifact, built = build_image(
            request, bench, BuildPolicy(fresh=options.no_cache, offline=options.offline)
        )
    if sif:
        from hpcstack.store.sif import assemble_sif

        sif = assemble_sif(artifact.image, artifact.platform, Path(options.sif), bench.runner)
    return BuiltStack(artifact, built, request, sif)
