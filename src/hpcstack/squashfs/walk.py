"""Walk through all names of a SquashFS, without a mount and without reading a file.

Tested in tests/unit/publish/test_search.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.squashfs.codec import Unreadable
from hpcstack.squashfs.inode import DIR

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcstack.squashfs.read import Squashfs

MAX_PATH = 1 << 16  # bytes; Linux opens none that is longer than 4096


def walk_paths(image: Squashfs) -> Iterator[bytes]:
    """Yield the path of everything in IMAGE, such as `usr/bin/env`, folders before what is in them.

    Raise Unreadable if the image is damaged. A folder that is in two places is: it may be in
    itself.
    """
    waiting: list[tuple[bytes, int]] = [(b"", image.super.root)]
    seen: set[int] = set()  # numbers of folders
    while waiting:
        above, reference = waiting.pop()
        folder = image.inode(reference)
        if folder.number in seen:
            raise Unreadable("a folder is in two places")
        seen.add(folder.number)
        for name, entry in image.listing(folder).items():
            path = above + name
            if len(path) > MAX_PATH:
                raise Unreadable("its folders lie too deep in one another")
            yield path
            if entry.kind == DIR:
                waiting.append((path + b"/", entry.reference))
