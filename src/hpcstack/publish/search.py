"""Find which images, releases and locks have a package or a file.

An image is searched in what its build wrote down of it (packages), or in its squashfs (files). A
lock has only the packages that its recipe adds: what its base brings is known when it is built.
"""

from __future__ import annotations

import fnmatch
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError
from hpcstack.squashfs.codec import Unreadable
from hpcstack.squashfs.lookup import find_inode
from hpcstack.squashfs.read import Squashfs
from hpcstack.squashfs.walk import walk_paths
from hpcstack.store.package import (
    Package,
    Question,
    is_asked_for,
    list_packages,
    list_packages_elsewhere,
    parse_question,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hpcstack.publish.holdings import HeldRelease, Holdings

FILE = "file:"
MOST_TOLD = 3  # lines on what of an image's packages could not be listed
MOST_FILES = 1000  # of one image; what has more was asked for too widely


@dataclass(frozen=True)
class Hit:
    """What was asked for, and where it is: in an image, which may be published, or in a lock."""

    stack: str
    platform: str
    key: str  # of the image; empty for a lock
    releases: tuple[HeldRelease, ...]
    package: Package | None = None  # None where a file was asked for
    path: str = ""  # of the file in the image
    undecided: bool = False  # it has the name, and its version cannot be compared

    @property
    def where(self) -> str:
        """Where it is, in words: its releases, else `stored` or `locked`."""
        if self.releases:
            return ", ".join(one.describe() for one in self.releases)
        return "stored" if self.key else "locked"


def find_hits(text: str, holdings: Holdings, say: Callable[[str], None]) -> list[Hit]:
    """Return what of HOLDINGS has what TEXT asks for, what is published first.

    TEXT is `file:` and a name or a path with * and ?, or what `parse_question` takes. An image that
    cannot be read is added to those of HOLDINGS. SAY is told what takes long.
    """
    if text.startswith(FILE):
        return list(_search_files(text.removeprefix(FILE), holdings, say))
    return list(_search_packages(parse_question(text), holdings))


def _search_packages(question: Question, holdings: Holdings) -> Iterator[Hit]:
    for image in holdings.images:
        artifact = image.artifact
        elsewhere = list_packages_elsewhere(artifact)
        doubts = artifact.unlisted[:MOST_TOLD]
        if not elsewhere.was_looked:
            holdings.by_older.append(artifact)
        elif elsewhere.doubt:
            doubts.append(elsewhere.doubt)
        if doubts:
            what = "; ".join(doubts)
            holdings.unread.append(f"{artifact.stack} ({artifact.key[:12]}): {what}")
        for package in (*list_packages(artifact), *elsewhere.packages):
            asked = is_asked_for(package, question)
            if asked is not False:
                yield Hit(
                    artifact.stack,
                    artifact.platform,
                    artifact.key,
                    image.releases,
                    package,
                    undecided=asked is None,
                )
    for lock in holdings.locks:
        for package in lock.packages:
            asked = is_asked_for(package, question)
            if asked is not False:
                yield Hit(lock.stack, lock.platform, "", (), package, undecided=asked is None)


def _search_files(pattern: str, holdings: Holdings, say: Callable[[str], None]) -> Iterator[Hit]:
    if not pattern.strip("/"):
        raise InputError(
            "file: names no file",
            "hpcstack find file:libnccl.so.2, or file:/usr/lib/*/libnccl.so*",
            page="find-what-is-inside",
        )
    for image in holdings.images:
        artifact = image.artifact
        say(f"searching the files of {artifact.stack} ({artifact.key[:12]})")
        try:
            paths = find_paths(artifact.image, pattern)
        except (Unreadable, OSError) as error:
            holdings.unread.append(f"{artifact.image} cannot be read: {error}")
            continue
        if len(paths) == MOST_FILES:
            holdings.unread.append(f"{artifact.stack} has more than {MOST_FILES} such files")
        for path in paths:
            yield Hit(artifact.stack, artifact.platform, artifact.key, image.releases, path=path)


def find_paths(image: Path, pattern: str) -> list[str]:
    """Return the paths in IMAGE that PATTERN means, sorted; at most `MOST_FILES`.

    A PATTERN with a slash is one of a whole path, another one of the last name. Links on the way to
    a path without wildcards are followed, as a program would. Raise Unreadable or OSError if the
    image cannot be read.
    """
    of_whole_path = "/" in pattern
    wanted = os.fsencode(pattern.strip("/"))
    has_wildcards = any(sign in wanted for sign in b"*?[")

    found = []
    with Squashfs(image) as opened:
        if of_whole_path and not has_wildcards:
            there = find_inode(opened, os.fsdecode(wanted), follow=False)
            return ["/" + os.fsdecode(wanted)] if there else []
        # most images have no such name at all, which their table of names says quickly
        if not has_wildcards and not opened.may_hold(wanted):
            return []
        for path in walk_paths(opened):
            name = path if of_whole_path else path.rpartition(b"/")[2]
            if name == wanted or (has_wildcards and fnmatch.fnmatchcase(name, wanted)):
                found.append("/" + os.fsdecode(path))
                if len(found) == MOST_FILES:
                    break
    return sorted(found)
