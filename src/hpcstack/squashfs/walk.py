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

MAX_DEPTH = 400  # folders in one another


def walk_paths(image: Squashfs) -> Iterator[bytes]:
    """Yield the path of everything in IMAGE, such as `usr/bin/env`, folders before what is in them.

    Raise Unreadable if the image is damaged. A folder that is its own parent is.
    """
    waiting = [(b"", image.root(), 0)]
    folders = 0
    while waiting:
        above, folder, depth = waiting.pop()
        folders += 1
        if depth > MAX_DEPTH or folders > image.super.inodes:
            raise Unreadable("its folders have no end")
        for name, entry in image.listing(folder).items():
            path = above + name
            yield path
            if entry.kind == DIR:
                waiting.append((path + b"/", image.inode(entry.reference), depth + 1))
