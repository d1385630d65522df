"""The lock of a recipe as a file: where it lies, what it says, whether it is the recipe's, and how
it is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError
from hpcstack.core.files import write_text, writing_below
from hpcstack.core.sharing import make_shared_folder
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
        return lock_path(self.recipe, self.site)

    def read(self) -> Lock | None:
        """What is there, fitting the recipe or not; None where nothing is.

        InputError where it is not a lock.
        """
        found = self._read_file()
        return found.lock if found else None

    def read_unedited(self) -> Lock | None:
        """What hpcstack wrote there; None where nothing is, or somebody has changed it since."""
        found = self._read_file()
        return found.lock if found and not found.edited else None

    def _read_file(self) -> model.ReadLock | None:
        return model.read_lock_file(self.path) if self.path.exists() else None

    def _staleness(self, found: model.ReadLock) -> list[str]:
        """Why what was FOUND is not what was locked for the recipe."""
        edited = ["it was changed by hand since it was locked"] if found.edited else []
        return [*edited, *find_staleness(self.recipe.stack, found.lock)]

    def state(self) -> Staleness:
        """Why it is not what the recipe says now, and what it leaves open."""
        found = self._read_file()
        if found is None:
            return Staleness(("there is no lock",))
        reasons = (*self._staleness(found), *find_drift(found.lock))
        return Staleness(reasons, find_open_items(self.recipe.stack, found.lock))

    def current(self) -> Lock | None:
        """The lock that is there. A stale one is refused: what is built must be what was locked."""
        found, name = self._read_file(), self.recipe.stack.full_name
        if found and (reasons := self._staleness(found)):
            raise InputError(
                f"the lock of {name} is stale: {'; '.join(reasons)}", f"hpcstack lock {name}"
            )
        return found.lock if found else None

    def exact(self, platform: str) -> Lock:
        """The lock for `build --locked`. InputError names all that speaks against it."""
        name, lock = self.recipe.stack.full_name, self.read()
        if (reasons := self.state().refused(platform)) or lock is None:
            raise InputError(
                f"{name} cannot be built as locked: {'; '.join(reasons)}", f"hpcstack lock {name}"
            )
        return lock

    def offline(self) -> Lock:
        """The lock that is there: without a network none can be made."""
        lock, name = self.current(), self.recipe.stack.full_name
        if lock is None:
            raise InputError(
                f"{name} has no lock, and --offline asks no registry for one",
                "hpcstack bundle apply brings one, or: hpcstack lock where there is a network",
            )
        return lock

    def write(self, lock: Lock) -> Path:
        """LOCK where the recipe's lock lies. StoreError where that cannot be written."""
        assert not lock.not_looked_up
        path, folder = lock_path(self.recipe, self.site, to_write=True), self.site.own_lock_dir
        with writing_below(self.site.own_store, "the lock was not written"):
            if path.parent == folder:
                make_shared_folder(folder)
            write_text(path, lock.file_text())
        return path
