"""What all code that makes images works with, made once by the caller that wants an image.

Tested in tests/unit/oci/test_importer.py and tests/integration/test_engines.py.
"""

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
    """A site, the client of registries, the runner of programs, and the progress to report to."""

    site: Site
    registry: Registry
    runner: Runner
    progress: Progress

    @cached_property
    def store(self) -> Store:
        """The store that the site's images go into."""
        return open_store(self.site)
