"""How much one image may be: what is read of it is counted, and refused before it fills a disk or a
memory. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tarfile

MAX_PATH, MAX_COMPONENT, MAX_DEPTH = 4096, 255, 256  # bytes, bytes (NAME_MAX), folders
MAX_NAMES, A_NAME = (
    1 << 30,
    150,
)  # bytes of all names that are held in memory, and what holding one takes
UNPACKED_BYTES, ENTRIES = 256 << 30, 5_000_000  # NVIDIA's largest images: 50 GB and 600,000


class TooLarge(ValueError):
    """An image that is more than it may be."""


@dataclass(frozen=True)
class Bounds:
    """What an image may be at most, all its layers together: bytes of files, and members of layers."""

    unpacked_bytes: int = UNPACKED_BYTES
    entries: int = ENTRIES


STANDARD = Bounds()


class Tally:
    """What has been read of one image so far."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds, self.bytes, self.entries = bounds, 0, 0

    def member(self, member: tarfile.TarInfo) -> None:
        """One member more. TooLarge where that is too much."""
        self.entries += 1
        self.bytes += max(0, member.size)
        if self.entries > self.bounds.entries:
            raise TooLarge(
                f"makes it more than {self.bounds.entries} entries (build.bounds.entries in "
                f"site.yaml)"
            )
        if self.bytes > self.bounds.unpacked_bytes:
            raise TooLarge(
                f"makes it more than {self.bounds.unpacked_bytes >> 30} GiB unpacked "
                f"(build.bounds.unpacked_bytes in "
                "site.yaml)"
            )


def check_path(path: str, what: str = "a path") -> None:
    """TooLarge for a PATH that no filesystem could hold, or that is deeper than any image's."""
    if len(path) <= MAX_COMPONENT and path.isascii():
        return
    data = path.encode("utf-8", "surrogateescape")
    if len(data) > MAX_PATH:
        raise TooLarge(f"has {what} of more than {MAX_PATH} bytes: {path[:80]}...")
    parts = data.split(b"/")
    if len(parts) > MAX_DEPTH:
        raise TooLarge(f"has {what} of more than {MAX_DEPTH} folders: {path[:80]}...")
    if any(len(part) > MAX_COMPONENT for part in parts):
        raise TooLarge(f"has {what} with a name of more than {MAX_COMPONENT} bytes: {path[:80]}...")
