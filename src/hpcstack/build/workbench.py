"""What all that makes images works with, made once by whoever asks for an image."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from hpcstack.store.store import open_store

if TYPE_CHECKING:
    from hpcstack.core.process import Runner
    from hpcstack.core.progress import Progress
    from hpcstack.oci.client import Registry
    from hpcstack.site.load import Site
    from hpcstack.store.store import Store


@dataclass(frozen=True)
class Workbench:
    """A site, the registries that it may ask, the programs that it may run, and who is told how far
    it is.
    """

    site: Site
    registry: Registry
    runner: Runner
    progress: Progress

    @cached_property
    def store(self) -> Store:
        return open_store(self.site)
