"""The lock of a recipe as a file: it is found, read, judged and written here.

Tested in tests/unit/cli/test_locks.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError
from hpcstack.core.files import write_text, writing_below
from hpcstack.lock import model
from hpcstack.lock.check import Staleness, find_drift, find_open_items, find_staleness
from hpcstack.lock.path import lock_path

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.lock.model import Lock
    from hpcstack.recipe.catalog import Recipe
    from hpcstack.site.load import Site


@dataclass(frozen=True)
class LockFile:
    """The one lock of RECIPE at SITE."""

    recipe: Recipe
    site: Site

    @property
    def path(self) -> Path:
        """Where the lock lies; see `lock_path`."""
        return lock_path(self.recipe, self.site)

    def read(self) -> Lock | None:
        """Return the lock that is there, stale or not; None where there is none.

        InputError where the file is not a lock.
        """
        found = self._read_file()
        return found.lock if found else None

    def read_unedited(self) -> Lock | None:
        """Return the lock as hpcstack wrote it; None where there is none, or it was edited."""
        found = self._read_file()
        return found.lock if found and not found.edited else None

    def _read_file(self) -> model.ReadLock | None:
        path = self.path
        if not path.exists():
            return None
        # Each member of the group may write to the site's folder, and a lock says what is built.
        is_shared = path.parent == self.site.lock_dir
        return model.read_lock_file(path, self.site.sharing if is_shared else None)

    def _find_staleness(self, found: model.ReadLock) -> list[str]:
        """Return why the lock that was FOUND is not what was locked for the recipe."""
        edited = ["it was changed by hand since it was locked"] if found.edited else []
        project = self.recipe.project
        sha256 = project.sha256 if project else ""
        return [*edited, *find_staleness(self.recipe.stack, found.lock, sha256)]

    def state(self) -> Staleness:
        """Return why the lock is not what would be locked now, and what it leaves open."""
        found = self._read_file()
        if found is None:
            return Staleness(("there is no lock",))
        reasons = (*self._find_staleness(found), *find_drift(found.lock))
        return Staleness(reasons, find_open_items(self.recipe.stack, found.lock))

    def current(self) -> Lock | None:
        """Return the lock that is there; None where there is none.

        InputError where it is stale: what is built must be what was locked.
        """
        found = self._read_file()
        if not found:
            return None
        name = self.recipe.stack.full_name
        reasons = self._find_staleness(found)
        if reasons:
            raise InputError(
                f"the lock of {name} is stale: {'; '.join(reasons)}",
                f"hpcstack lock {name}",
                page="write-a-recipe",
            )
        return found.lock

    def exact(self, platform: str) -> Lock:
        """Return the lock for `build --locked`, which must leave nothing open for PLATFORM.

        InputError names all that speaks against it.
        """
        name = self.recipe.stack.full_name
        lock = self.read()
        reasons = self.state().refused(platform)
        if reasons or lock is None:
            raise InputError(
                f"{name} cannot be built as locked: {'; '.join(reasons)}",
                f"hpcstack lock {name}",
                page="choose-an-engine",
            )
        return lock

    def offline(self) -> Lock:
        """Return the lock for a build without a network, where none can be made.

        InputError where there is none, or it is stale.
        """
        name = self.recipe.stack.full_name
        lock = self.current()
        if lock is None:
            raise InputError(
                f"{name} has no lock, and --offline asks no registry for one",
                "hpcstack bundle apply brings one, or: hpcstack lock where there is a network",
                page="air-gap",
            )
        return lock

    def write(self, lock: Lock) -> Path:
        """Write LOCK where the recipe's lock lies, and return its path.

        StoreError where it cannot be written.
        """
        assert not lock.not_looked_up
        path = lock_path(self.recipe, self.site, to_write=True)
        folder = self.site.own_lock_dir
        sharing = self.site.sharing
        with writing_below(self.site.own_store, "the lock was not written", sharing):
            if path.parent == folder:
                sharing.make_folder(folder)
            write_text(path, lock.file_text(), sharing=sharing)
        return path
