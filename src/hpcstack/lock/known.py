"""Makes a stand-in for a lock, from the recipe and facts/ alone: to show files, never to build."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.hardware.facts import image_environment
from hpcstack.lock.check import with_open_items
from hpcstack.lock.model import TEMPLATE_VERSION, UNKNOWN, Lock, LockedBase, LockedPlatform

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.recipe.catalog import Recipe
    from hpcstack.recipe.model import Stack

# The default of Debian and Ubuntu, without what a base adds to it
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def make_known_lock(stack: Stack) -> Lock:
    """Return a stand-in for the lock of STACK, to show what would be rendered.

    Its digests are `UNKNOWN`, by which `Lock.not_looked_up` tells it from a real one.
    """
    base = stack.base
    digest = base.digest or UNKNOWN
    platforms = {
        name: LockedPlatform(digest=digest, environment=_guess_environment(base.image, name))
        for name in base.platforms
    }
    commits = {source.name: source.commit for source in stack.packages.source if source.commit}

    lock = Lock(
        stack=stack.full_name,
        spec_sha256=stack.checksum(),
        template_version=TEMPLATE_VERSION,
        base=LockedBase(
            registry=base.registry,
            repository=base.repository,
            tag=base.tag,
            index_digest=UNKNOWN,
            answered_by="nobody",
            platforms=platforms,
        ),
        sources=commits,
    )
    return with_open_items(lock, stack)


def _guess_environment(image: str, platform: str) -> dict[str, str]:
    """Return what is known of the environment of IMAGE, with the usual PATH."""
    return {"PATH": PATH, **image_environment(image, platform)}


def list_lacking(stack: Stack, platform: str) -> list[str]:
    """Return what `make_known_lock` could not look up, a line each, and what to type to look it up."""
    image = stack.base.image
    out = ["NOT LOOKED UP: no lock, and no registry was asked or answered"]
    if not stack.base.digest:
        out.append(f"the digest of {image}: the tag may mean another image tomorrow")

    known = sorted(image_environment(image, platform))
    extent = "nothing is known of it"
    if known:
        extent = f"only {', '.join(known)} are known, from hpcstack's own facts"
    out.append(
        f"the environment of {image}: {extent}; its entrypoint and working directory are not "
        f"known either"
    )

    # Variables that the recipe extends: the base's part of their values is not known.
    extended = [
        name
        for name, setting in stack.environment.items()
        if setting.set is None and name not in known
    ]
    if extended:
        out.append(f"so these are shown without the base's part: {', '.join(extended)}")
    kinds = _list_kinds(stack)
    if kinds:
        out.append(f"the versions of packages: {', '.join(kinds)}")
    out.append(
        f"hpcstack lock {stack.full_name} looks all of it up; hpcstack build never takes this text"
    )
    return out


def _list_kinds(stack: Stack) -> list[str]:
    """Return the kinds of packages that STACK adds."""
    packages = stack.packages
    kinds = {
        "apt": packages.apt,
        "dnf": packages.dnf,
        "pip": packages.pip,
        "conda": packages.conda.packages,
        "source": packages.source,
    }
    return [kind for kind, wanted in kinds.items() if wanted]


def read_base_environment(
    recipe: Recipe, lock: Lock | None, platform: str = ""
) -> Mapping[str, str]:
    """Return the variables of the base on PLATFORM, by default the first of the recipe.

    They are as the registry said when the base was locked. Without a LOCK of this base they are as
    far as facts/ knows the image.
    """
    base = recipe.stack.base
    platform = platform or base.platforms[0]
    wanted = (base.registry, base.repository, base.tag)
    if lock and (lock.base.registry, lock.base.repository, lock.base.tag) == wanted:
        known = lock.base.platforms
        return known.get(platform, next(iter(known.values()))).environment
    return image_environment(base.image, platform)
