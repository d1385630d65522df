"""How large one image may be.

What is read of an image is counted, and refused before it fills a disk or the memory. Pure.

Tested in tests/hostile/test_layers.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tarfile
MAX_PATH = 4096  # bytes of a path: PATH_MAX
MAX_COMPONENT = 255  # bytes of one name: NAME_MAX
MAX_DEPTH = 256  # folders in a path
MAX_NAMES = 1 << 30  # bytes of memory that all names of an image may take
A_NAME = 150  # bytes of memory that holding one name takes, beside its text
# NVIDIA's largest images unpack to 50 GB and 600,000 entries: a real image stays far below these.
UNPACKED_BYTES = 256 << 30
ENTRIES = 5_000_000


class TooLarge(ValueError):
    """An image, or a name in it, exceeds what is allowed."""


@dataclass(frozen=True)
class Bounds:
    """The most that one image may hold, all layers together: bytes of files, members of layers."""

    unpacked_bytes: int = UNPACKED_BYTES
    entries: int = ENTRIES


STANDARD = Bounds()


class Tally:
    """A count of what has been read of one image so far, held against its bounds."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds, self.bytes, self.entries = bounds, 0, 0

    def member(self, member: tarfile.TarInfo) -> None:
        """Count one MEMBER more. Raise TooLarge where that exceeds the bounds."""
        self.entries += 1
        self.bytes += max(0, member.size)
        if self.entries > self.bounds.entries:
            raise TooLarge(
                f"makes it more than {self.bounds.entries} entries "
                "(build.bounds.entries in site.yaml)"
            )
        if self.bytes > self.bounds.unpacked_bytes:
            gibibytes = self.bounds.unpacked_bytes >> 30
            raise TooLarge(
                f"makes it more than {gibibytes} GiB unpacked "
                "(build.bounds.unpacked_bytes in site.yaml)"
            )


def check_path(path: str, what: str = "a path") -> None:
    """Raise TooLarge for a PATH that no filesystem could hold, or that is deeper than any image's.

    WHAT names it in the message.
    """
    if len(path) <= MAX_COMPONENT and path.isascii():
        return  # most paths: too short to exceed any of the limits

    data = path.encode("utf-8", "surrogateescape")
    if len(data) > MAX_PATH:
        raise TooLarge(f"has {what} of more than {MAX_PATH} bytes: {path[:80]}...")
    parts = data.split(b"/")
    if len(parts) > MAX_DEPTH:
        raise TooLarge(f"has {what} of more than {MAX_DEPTH} folders: {path[:80]}...")
    if any(len(part) > MAX_COMPONENT for part in parts):
        raise TooLarge(f"has {what} with a name of more than {MAX_COMPONENT} bytes: {path[:80]}...")
