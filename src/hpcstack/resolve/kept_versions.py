"""What stays as it was locked, where a lock is made anew for some packages alone.

`hpcstack lock STACK --only PACKAGE` is for a security fix: one package moves, and what it needs to.
The base, and every other package that the stack adds, keep their versions.

Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from hpcstack.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hpcstack.lock.model import Lock, LockedPlatform
    from hpcstack.recipe.model import Stack

PINNED = (
    1001  # apt takes such a version even where it is older than what is there: apt_preferences(5)
)


@dataclass(frozen=True)
class KeptVersions:
    """The versions of LOCK that stay, which is all but those of the packages and sources ONLY."""

    lock: Lock
    only: frozenset[str]  # names as `canonicalize_name` writes them

    def moves(self, name: str) -> bool:
        """Return whether the package or source NAME is locked anew."""
        return canonicalize_name(name) in self.only

    def pip(self, platform: str) -> tuple[str, ...]:
        """Return a constraint for each Python package that stays: `six==1.17.0`."""
        entries = self.lock.platform(platform).pip or ()
        return tuple(f"{one.name}=={one.version}" for one in entries if not self.moves(one.name))

    def conda(self, platform: str) -> tuple[str, ...]:
        """Return a spec for each conda package that stays: `xz=5.8.1=h1234_0`."""
        entries = self.lock.platform(platform).conda or ()
        kept = (one for one in entries if not self.moves(one.name))
        return tuple(f"{one.name}={one.version}={one.build}" for one in kept)

    def dnf(self, platform: str) -> tuple[str, ...]:
        """Return a name with its version for each package of rpm that stays: `git=2.43.5-1.el9`."""
        entries = self.lock.platform(platform).dnf or ()
        return tuple(f"{one.name}={one.version}" for one in entries if not self.moves(one.name))

    def apt_preferences(self, platform: str) -> str:
        """Return apt's preferences that pin each Debian package which stays."""
        entries = self.lock.platform(platform).apt or ()
        return "\n".join(
            f"Package: {one.name}\nPin: version {one.version}\nPin-Priority: {PINNED}\n"
            for one in entries
            if not self.moves(one.name)
        )


def list_added(lock: Lock) -> set[str]:
    """Return the names of all packages and sources that LOCK adds, as `canonicalize_name` does."""
    names = set(lock.sources)
    for platform in lock.base.platforms.values():
        for kind in (platform.apt, platform.dnf, platform.pip, platform.conda):
            names |= {one.name for one in kind or ()}
    return {canonicalize_name(name) for name in names}


def keep_all_but(stack: Stack, lock: Lock, only: Sequence[str]) -> KeptVersions:
    """Return what of LOCK stays where the packages ONLY are locked anew for STACK.

    Raise InputError where LOCK is of another base, or adds none of ONLY, or has a version that the
    recipe no longer takes.
    """
    name = stack.full_name
    base = stack.base
    locked = (lock.base.registry, lock.base.repository, lock.base.tag)
    has_all = all(one in lock.base.platforms for one in base.platforms)
    same_digest = base.digest in ("", lock.base.index_digest)
    if locked != (base.registry, base.repository, base.tag) or not same_digest or not has_all:
        raise InputError(
            f"the lock of {name} is of another base: with --only, the base stays",
            f"hpcstack lock {name}",
            page="new-ngc-month",
        )

    kept = KeptVersions(lock, frozenset(map(canonicalize_name, only)))
    asked = {canonicalize_name(one) for one in _list_asked(stack)}
    missing = sorted(kept.only - list_added(lock) - asked)
    if missing:
        raise InputError(
            f"{name} adds no {', '.join(missing)} to its base",
            f"hpcstack find {missing[0]} says what has it; what the base has comes with a newer "
            f"base: hpcstack bump {stack.name} --newest",
            page="new-ngc-month",
        )
    _refuse_contradictions(stack, kept)
    return kept


def _list_asked(stack: Stack) -> Iterator[str]:
    """Yield the names of what STACK asks for itself."""
    packages = stack.packages
    yield from (re.split("[=/<>]", text)[0] for text in (*packages.apt, *packages.dnf))
    yield from (source.name for source in packages.source)
    for text in (*packages.pip, *packages.constraints):
        requirement = _parse_requirement(text)
        if requirement:
            yield requirement.name
    for text in packages.conda.packages:
        yield re.split(r"[=<>!~\s]", text.strip())[0]


def _refuse_contradictions(stack: Stack, kept: KeptVersions) -> None:
    """Raise InputError where the recipe does not take a version that would stay."""
    locked = {
        canonicalize_name(one.name): one.version
        for platform in kept.lock.base.platforms.values()
        for one in platform.pip or ()
    }
    for text in (*stack.packages.pip, *stack.packages.constraints):
        requirement = _parse_requirement(text)
        if not requirement or kept.moves(requirement.name):
            continue
        version = locked.get(canonicalize_name(requirement.name), "")
        if version and not _takes(requirement, version):
            raise InputError(
                f"{stack.full_name} asks for {text}, and {version} is locked",
                f"lock it anew as well: --only {requirement.name}",
                page="new-ngc-month",
            )


def _parse_requirement(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


def _takes(requirement: Requirement, version: str) -> bool:
    try:
        return requirement.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return True


def keep_entries(kept: KeptVersions, platform: str, now: LockedPlatform) -> LockedPlatform:
    """Return NOW, with the very entry that is locked for each package that stays: also its hashes.

    What source distributions are built with stays, too, unless other ones are built now.
    """
    had = kept.lock.platform(platform)
    changes: dict[str, object] = {}
    for kind in ("apt", "dnf", "pip", "conda"):
        entries = getattr(now, kind)
        if entries is None:
            continue
        locked = {
            (one.name, one.version, getattr(one, "arch", "")): one
            for one in getattr(had, kind) or ()
            if not kept.moves(one.name)
        }
        changes[kind] = tuple(
            locked.get((one.name, one.version, getattr(one, "arch", "")), one) for one in entries
        )
    return _keep_builders(had, now.model_copy(update=changes))


def _keep_builders(had: LockedPlatform, now: LockedPlatform) -> LockedPlatform:
    """Return NOW with what source distributions are built with as HAD has it.

    Where other distributions are built now, what builds them is as it was found now.
    """

    def list_sources(platform: LockedPlatform) -> list[tuple[str, str]]:
        return [(one.name, one.version) for one in platform.source_distributions()]

    if had.pip_build is None or list_sources(had) != list_sources(now):
        return now
    return now.model_copy(update={"pip_build": had.pip_build})


def refuse_other_commit(kept: KeptVersions, name: str, ref: str, commit: str) -> None:
    """Raise InputError where the source NAME stays, and its REF names another COMMIT now.

    The recipe has changed since it was locked, perhaps in this ref: a lock does not say of which
    ref a commit was.
    """
    locked = kept.lock.sources.get(name, "")
    if locked and locked != commit:
        raise InputError(
            f"{name} is locked to {locked[:12]}, and {ref} is {commit[:12]} now",
            f"lock it anew as well: --only {name}; or write the locked commit into the recipe",
            page="new-ngc-month",
        )


def refuse_gone(kept: KeptVersions, platform: str, now: LockedPlatform) -> None:
    """Raise InputError where a Debian package that was to stay has another version in NOW.

    apt takes another where the archive has dropped the one that is pinned.
    """
    had = {one.name: one.version for one in kept.lock.platform(platform).apt or ()}
    moved = [
        one
        for one in now.apt or ()
        if one.name in had and one.version != had[one.name] and not kept.moves(one.name)
    ]
    if moved:
        first = moved[0]
        names = " ".join(f"--only {one.name}" for one in moved)
        raise InputError(
            f"{first.name} {had[first.name]} is not in the archive any more, which has "
            f"{first.version}",
            f"lock it anew as well: {names}",
            page="new-ngc-month",
        )
