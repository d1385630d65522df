"""What is in a stored image, read out of its squashfs: nothing is unpacked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpcstack.core.errors import BuildError

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.core.process import Runner

MAX_CAT = 64 << 20  # bytes of one file


def read_file(image: Path, path: str, runner: Runner) -> str:
    """The text of PATH in IMAGE, a squashfs. BuildError where it is not there, or is made to fill the memory."""
    try:
        with runner.read(["unsquashfs", "-cat", str(image), path]) as pipe:
            content = bytearray()
            while block := pipe.read(1 << 20):
                content += block
                if len(content) > MAX_CAT:
                    raise BuildError(f"the image's {path} is larger than {MAX_CAT >> 20} MiB")
    except BuildError as error:
        raise BuildError(
            f"the image's {path} cannot be read: {error.message}", "unsquashfs must be of squashfs-tools 4.5 or newer"
        ) from None
    return content.decode("utf-8", "replace")


def read_optional(image: Path, path: str, runner: Runner) -> str:
    """The text of PATH in IMAGE; empty where it cannot be read."""
    try:
        return read_file(image, path, runner)
    except BuildError:
        return ""


def read_distribution(image: Path, runner: Runner) -> str:
    """ID of the image's /etc/os-release."""
    match = re.search(r'^ID="?([a-z0-9._-]+)', read_optional(image, "etc/os-release", runner), re.MULTILINE)
    return match[1] if match else "debian"
