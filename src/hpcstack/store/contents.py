"""Reads files out of a stored image's squashfs, without unpacking it.

Tested in tests/hostile/test_layers.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcstack.core.errors import BuildError
from hpcstack.core.untrusted import parse_untrusted_json
from hpcstack.squashfs.codec import Unreadable
from hpcstack.squashfs.lookup import find_inode, read_content
from hpcstack.squashfs.read import Squashfs

if TYPE_CHECKING:
    from pathlib import Path

MAX_SIZE = 64 << 20  # bytes of one file
MAX_ABOUT = 1 << 20  # bytes of stack.json


def read_image_file(image: Path, path: str) -> str:
    """Return the text of PATH in IMAGE, a squashfs.

    BuildError where it is not there, cannot be read, or is larger than `MAX_SIZE`: a file may be
    made to fill the memory.
    """
    try:
        with Squashfs(image) as opened:
            found = find_inode(opened, path)
            if found is None:
                raise BuildError(f"the image {image} has no {path}", "was it built by hpcstack?")
            return read_content(opened, found, MAX_SIZE).decode("utf-8", "replace")
    except (Unreadable, OSError) as error:
        raise BuildError(
            f"the image's {path} cannot be read: {error}", f"is {image} damaged?"
        ) from None


def read_optional(image: Path, path: str) -> str:
    """Return the text of PATH in IMAGE; empty where it cannot be read."""
    try:
        return read_image_file(image, path)
    except BuildError:
        return ""


def read_about(image: Path) -> dict[str, Any]:
    """Return what IMAGE says of itself in /opt/hpcstack/stack.json; empty where it says nothing.

    Source of its keys: render/image.py, describe_image.
    """
    text = read_optional(image, "opt/hpcstack/stack.json")
    try:
        return parse_untrusted_json(text.encode(), MAX_ABOUT)
    except ValueError:
        return {}


@dataclass(frozen=True)
class Distribution:
    """The distribution that an image is made of, as its /etc/os-release names it."""

    name: str  # ID: ubuntu
    version: str = ""  # VERSION_ID: 24.04; empty where there is none


def read_distribution(image: Path) -> Distribution:
    """Return the distribution of IMAGE; Debian where it names none."""
    text = read_optional(image, "etc/os-release")
    name = re.search(r"""^ID=["']?([a-z0-9._-]+)""", text, re.MULTILINE)
    version = re.search(r"""^VERSION_ID=["']?([A-Za-z0-9._-]+)""", text, re.MULTILINE)
    return Distribution(name[1] if name else "debian", version[1] if version else "")
