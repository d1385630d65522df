"""What the site holds: its images with their releases, and the locks of its recipes.

`find` and `audit` go through them. What could not be read is named, never left out: an image that
nobody looked into may have what is looked for.

Tested in tests/unit/publish/test_search.py.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpcstack.core.errors import HpcstackError, StoreError
from hpcstack.lock.file import LockFile
from hpcstack.resolve.outdated import list_locked_recipes
from hpcstack.store.package import Package

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcstack.lock.model import LockedPlatform
    from hpcstack.recipe.catalog import Catalog
    from hpcstack.releases.ledger import Ledger
    from hpcstack.releases.tree import Tree
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact
    from hpcstack.store.store import Store


@dataclass(frozen=True)
class HeldRelease:
    """A release whose files are there, and whether users come to it without naming it."""

    name: str  # pytorch/24.11-r2
    channel: str
    state: str  # see releases/ledger.py
    alias: bool  # its version means it
    default: bool  # its name means it
    people: int | None = None  # who used it in the last 90 days; None where that is not known

    def describe(self) -> str:
        """Return it in words: `pytorch/24.11-r2 (production, default, 31 people)`."""
        words = [self.channel] if self.state == "live" else [self.state]
        if self.default:
            words.append("default")
        if self.people is not None:
            words.append(f"{self.people} {'person' if self.people == 1 else 'people'}")
        return f"{self.name} ({', '.join(words)})"


@dataclass(frozen=True)
class HeldImage:
    """An image of the store, and the releases that it is."""

    artifact: Artifact
    releases: tuple[HeldRelease, ...]


@dataclass(frozen=True)
class HeldLock:
    """The lock of a recipe, for one platform: the packages that it adds to its base."""

    stack: str
    platform: str
    packages: tuple[Package, ...]


@dataclass
class Holdings:
    """What there is, and what of it could not be read."""

    images: list[HeldImage] = field(default_factory=list)
    locks: list[HeldLock] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    by_older: list[Artifact] = field(default_factory=list)  # their lists are an older hpcstack's


def list_holdings(
    store: Store, tree: Tree, catalog: Catalog | None = None, site: Site | None = None
) -> Holdings:
    """Return all images of STORE with their releases in TREE, the published ones first.

    With CATALOG and SITE the locks of its recipes are there, too.
    """
    out = Holdings()
    releases = _list_releases(tree, out)
    missing = set(releases)
    for artifact in store.images():
        missing.discard(artifact.key)
        out.images.append(HeldImage(artifact, tuple(releases.get(artifact.key, ()))))
    out.images.sort(key=lambda one: (not one.releases, one.artifact.stack, one.artifact.key))
    for key in sorted(missing):
        names = ", ".join(one.name for one in releases[key])
        out.unread.append(f"the image of {names} is damaged or gone: hpcstack status --check")
    for folder in store.list_damaged():
        if folder.name not in missing:
            out.unread.append(f"the image in {folder} is damaged: build it again, or remove it")

    if catalog and site:
        out.locks = _list_locks(catalog, site, out.unread.append)
    return out


def _list_releases(tree: Tree, out: Holdings) -> dict[str, list[HeldRelease]]:
    """Return {key of an image: the releases that it is}; those whose files are gone are none."""
    found: dict[str, list[HeldRelease]] = defaultdict(list)
    for name in tree.names():
        try:
            ledger = tree.ledger(name)
        except StoreError as error:
            out.unread.append(f"what is published as {name} cannot be read: {error}")
            continue
        for entry in ledger.entries:
            if entry.state not in ("removed", "gone"):
                found[entry.key].append(_make_release(ledger, entry.release))
    return found


def _make_release(ledger: Ledger, release: str) -> HeldRelease:
    entry = ledger.entry(release)
    return HeldRelease(
        name=f"{ledger.name}/{release}",
        channel=entry.channel,
        state=entry.state,
        alias=ledger.aliases.get(entry.version) == release,
        default=ledger.default == release,
    )


def _list_locks(catalog: Catalog, site: Site, say: Callable[[str], None]) -> list[HeldLock]:
    """Return what each lock adds to its base; tell SAY what cannot be read."""
    out = []
    for recipe in list_locked_recipes(catalog, site, say):
        try:
            lock = LockFile(recipe, site).read()
        except HpcstackError as error:
            say(f"the lock of {recipe.stack.full_name} cannot be read: {error}")
            continue
        if lock is None:
            continue
        for platform, locked in lock.base.platforms.items():
            out.append(HeldLock(lock.stack, platform, tuple(_list_locked(locked))))
    return out


def _list_locked(locked: LockedPlatform) -> list[Package]:
    """Return the packages that are LOCKED for one platform, sorted."""
    out = [Package("deb", one.name, one.version) for one in locked.apt or ()]
    out += [Package("other", one.name, one.version) for one in locked.dnf or ()]
    out += [Package("pypi", one.name, one.version) for one in locked.pip or ()]
    out += [Package("conda", one.name, one.version) for one in locked.conda or ()]
    return sorted(out)
