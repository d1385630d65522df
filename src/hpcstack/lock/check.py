"""Judges whether a lock fits a recipe, and what it leaves open. Asks no registry.

Tested in tests/unit/lock/test_lock.py and tests/unit/lock/test_known.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.lock.model import TEMPLATE_VERSION, Lock

if TYPE_CHECKING:
    from hpcstack.recipe.model import Stack


@dataclass(frozen=True)
class OpenItem:
    """One thing that a lock leaves to the build."""

    what: str
    platform: str = ""  # the platform on which it is open; empty: on all

    def __str__(self) -> str:
        return f"{self.what} of {self.platform}" if self.platform else self.what


def find_open_items(stack: Stack, lock: Lock) -> tuple[OpenItem, ...]:
    """Return what LOCK leaves to the build of STACK.

    That is kinds of packages that were not resolved, what source distributions are built with, and
    sources without a commit.
    """
    wanted = {
        "apt": bool(stack.packages.apt),
        "dnf": bool(stack.packages.dnf),
        "pip": bool(stack.packages.pip),
        "conda": bool(stack.packages.conda.packages),
    }
    out = [
        OpenItem(kind, name)
        for name, platform in lock.base.platforms.items()
        for kind, asked in wanted.items()
        if asked and getattr(platform, kind) is None
    ]

    for name, platform in lock.base.platforms.items():
        # pip builds these in an environment of their own, whose packages are locked as well.
        isolated = [
            entry
            for entry in platform.source_distributions()
            if not stack.packages.built_with_base(entry.name)
        ]
        if isolated and platform.pip_build is None:
            projects = ", ".join(f"{entry.name} {entry.version}" for entry in isolated)
            out.append(OpenItem(f"what builds {projects}", name))

    sources = [source.name for source in stack.packages.source if not lock.sources.get(source.name)]
    return (*out, *(OpenItem(f"source {name}") for name in sources))


def with_open_items(lock: Lock, stack: Stack) -> Lock:
    """Return LOCK with `unresolved` saying in words what it leaves to the build."""
    unresolved = tuple(str(item) for item in find_open_items(stack, lock))
    return lock.model_copy(update={"unresolved": unresolved})


def find_staleness(stack: Stack, lock: Lock, project_sha256: str = "") -> list[str]:
    """Return why LOCK is not the lock of STACK as it is now; empty where it is.

    PROJECT_SHA256 is that of the recipe's project, empty where its files are not here.
    """
    reasons = []
    if project_sha256 and lock.project_sha256 != f"sha256:{project_sha256}":
        reasons.append("the files of its project have changed")
    if lock.not_looked_up:
        reasons.append("no registry has said what its base is")
    locked_image = lock.adopted.sha256 if lock.adopted else ""
    image = stack.adopted.sha256 if stack.adopted else ""
    if locked_image != image:
        reasons.append("the recipe and the lock are of different adopted images")
    if lock.stack != stack.full_name:
        reasons.append(f"the lock is of {lock.stack}")
    if lock.spec_sha256 != stack.checksum():
        reasons.append("the recipe has changed since it was locked")

    locked = (lock.base.registry, lock.base.repository, lock.base.tag)
    if locked != (stack.base.registry, stack.base.repository, stack.base.tag):
        reasons.append(f"the base was {'/'.join(locked[:2])}:{locked[2]} and is {stack.base.image}")
    if stack.base.digest and stack.base.digest != lock.base.index_digest:
        reasons.append(f"the base was {lock.base.index_digest} and is {stack.base.digest}")
    missing = [name for name in stack.base.platforms if name not in lock.base.platforms]
    if missing:
        reasons.append(f"platforms that are not locked: {', '.join(missing)}")
    return reasons


def find_drift(lock: Lock) -> list[str]:
    """Return why LOCK would give another image than when it was made, though the recipe is the
    same; empty where it would not.

    An adopted image is not built, so no template counts for it.
    """
    if lock.template_version == TEMPLATE_VERSION or lock.adopted:
        return []
    return [f"hpcstack's templates were version {lock.template_version} and are {TEMPLATE_VERSION}"]


@dataclass(frozen=True)
class Staleness:
    """What is wrong with a recipe's lock, and what it leaves open."""

    reasons: tuple[str, ...]  # empty where the lock is current
    open: tuple[OpenItem, ...] = ()

    def refused(self, platform: str) -> list[str]:
        """Return why a build for PLATFORM would not be exactly what was locked."""
        left = [str(item) for item in self.open if item.platform in ("", platform)]
        if not left:
            return list(self.reasons)
        return [*self.reasons, f"it leaves open: {', '.join(left)}"]
