"""A file that takes long to make, there only when it is whole."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from hpcstack.core.files import put_in_place
from hpcstack.core.lease import label, sweep

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path, *, shared: bool = True) -> Iterator[Path]:
    """A name beside PATH to write to. It becomes PATH, also after a power failure, if the block ends well; else it is
    gone, and PATH is as it was. SHARED: a site's group may write it, too. What processes that were killed have left
    there is removed first.
    """
    sweep(path.parent, f".{path.name}.", lambda old: old.unlink(missing_ok=True))
    part = path.with_name(f".{path.name}.{label()}part")
    try:
        yield part
        put_in_place(part, path, shared=shared)
    finally:
        part.unlink(missing_ok=True)
