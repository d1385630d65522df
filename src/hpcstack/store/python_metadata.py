"""Read what the Python packages in an image say of themselves, those of all its Pythons.

A package lies in a folder such as site-packages, as PACKAGE.dist-info with a file METADATA, or in an
older form: https://packaging.python.org/en/latest/specifications/recording-installed-packages/.

Tested in tests/unit/store/test_package_lists.py.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from email.parser import HeaderParser
from typing import TYPE_CHECKING, NamedTuple

from hpcstack.core.untrusted import UNSAFE
from hpcstack.squashfs.codec import Unreadable
from hpcstack.squashfs.inode import DIR
from hpcstack.squashfs.lookup import find_inode, read_content
from hpcstack.squashfs.walk import walk_paths

if TYPE_CHECKING:
    from email.message import Message

    from hpcstack.squashfs.read import Squashfs

# The folder that holds a package, and the forms in which the package says what it is.
METADATA = re.compile(
    rb"(?P<folder>(?:.*/)?)"
    rb"(?:[^/]+\.dist-info/METADATA|[^/]+\.egg-info/PKG-INFO|[^/]+\.egg-info"
    rb"|[^/]+\.egg/EGG-INFO/PKG-INFO)"
)
ENDS = (b"/METADATA", b"/PKG-INFO", b".egg-info")
DIST_INFO = b".dist-info"
MAX_METADATA = 4 << 20  # bytes of one file; some have a readme in them
MAX_ALL = 128 << 20  # bytes of all files of one image
MOST_FILES = 20_000  # of one image


class PythonMetadata(NamedTuple):
    """What a Python package in FOLDER of an image says of itself, in the file PATH.

    FIELDS are those of https://packaging.python.org/en/latest/specifications/core-metadata/.
    """

    folder: str
    path: str
    fields: Message


@dataclass
class MetadataOfImage:
    """The Python packages of an image, and a line for each that cannot be read."""

    packages: list[PythonMetadata] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


def read_python_metadata(image: Squashfs) -> MetadataOfImage:
    """Return what the Python packages in IMAGE say of themselves.

    A file that has several names is read once. Raise Unreadable where the folders of IMAGE cannot be
    walked through.
    """
    out = MetadataOfImage()
    stems: set[bytes] = set()  # folders PACKAGE.dist-info
    stated: set[bytes] = set()  # those of them that have a METADATA
    read: set[int] = set()  # numbers of inodes
    left = MAX_ALL
    for path in walk_paths(image):
        if path.endswith(DIST_INFO):
            stems.add(path)
        match = METADATA.fullmatch(path) if path.endswith(ENDS) else None
        if match is None:
            continue

        stated.add(path.rpartition(b"/")[0])
        file = find_inode(image, os.fsdecode(path))
        if file is not None and (file.kind == DIR or file.number in read):
            continue
        shown = show_path(path)
        if file is None or file.size > MAX_METADATA:
            out.unread.append(f"{shown}: it cannot be read")
            continue
        left -= file.size
        if len(read) >= MOST_FILES or left < 0:
            out.unread.append("Python packages: there are more than are read")
            return out
        read.add(file.number)

        try:
            content = read_content(image, file, MAX_METADATA)
        except Unreadable:
            out.unread.append(f"{shown}: it cannot be read")
            continue
        fields = parse_fields(content.decode("utf-8", "replace"))
        out.packages.append(PythonMetadata(show_path(match["folder"]), shown, fields))

    out.unread += [f"{show_path(one)}: it has no METADATA" for one in sorted(stems - stated)]
    return out


def parse_fields(metadata: str) -> Message:
    """Return the fields of METADATA, without the description behind them."""
    return HeaderParser().parsestr(metadata.partition("\n\n")[0])


def show_path(path: bytes) -> str:
    """Return PATH of an image as text, from the root on, without what a terminal must not get."""
    plain = path.rstrip(b"/").decode("utf-8", "replace")
    return "/" + UNSAFE.sub("?", plain)
