"""A project of the user's own on top of a stack, for the verbs `hpcstack project ...`.

Tested in tests/integration/test_projects.py.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from hpcstack.naming.names import Names
from hpcstack.project.added import Added, make_added, make_lock_file, plan_added
from hpcstack.project.lock_file import compare_locks, read_project_lock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hpcstack.core.process import Runner
    from hpcstack.core.progress import Progress
    from hpcstack.recipe.catalog import Catalog
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact


@dataclass(frozen=True)
class OwnProject:
    """What a project adds to the image of a stack; `why` says why it is that image."""

    artifact: Artifact
    why: str
    planned: Added
    site: Site
    runner: Runner

    @property
    def is_locked(self) -> bool:
        """Whether it has a lock that is current."""
        return self.planned.lock is not None

    def lock(self, progress: Progress, *, upgrade: bool) -> dict[str, Any]:
        """Lock it, unless its lock is current or versions are to be chosen anew (UPGRADE).

        Return what the lock says: {path, packages, of_the_image, instead}, and what of it has changed.
        """
        before = read_project_lock(self.planned.lock_path)
        lock = self.planned.lock
        if lock is None or upgrade:
            lock = make_lock_file(
                self.planned, self.artifact, self.site, self.runner, progress, upgrade=upgrade
            )
        return {
            "path": str(self.planned.lock_path),
            "packages": lock.versions,
            "of_the_image": lock.about["of-the-image"],
            "instead": lock.about["instead"],
            "changed": [asdict(one) for one in compare_locks(before, lock)] if before else [],
        }

    def build(self, progress: Progress) -> dict[str, Any]:
        """Lock, install and pack what is missing. Return {path, size, lock, stack}."""
        make_added(self.planned, self.artifact, self.site, self.runner, progress, os.environ)
        packed = self.planned.file.resolve()
        return {
            "path": str(packed),
            "size": packed.stat().st_size,
            "lock": str(self.planned.lock_path),
            "stack": self.artifact.stack,
        }


def open_project(
    folder: Path,
    stack: str,
    extras: tuple[str, ...],
    groups: tuple[str, ...],
    catalog: Callable[[], Catalog],
    site: Site,
    runner: Runner,
) -> OwnProject:
    """Return what the project in FOLDER adds to the image that STACK means.

    EXTRAS and GROUPS are those of its pyproject.toml. CATALOG is called only where the image's name
    needs the recipes. Raise InputError for what cannot be read, and where STACK means no image.
    """
    chosen = Names(site, os.environ, catalog).find_image_to_run(stack)
    planned = plan_added(chosen.artifact, folder, chosen.layer, os.environ, extras, groups)
    return OwnProject(chosen.artifact, chosen.why, planned, site, runner)
