"""What can be said of a stack without a lock and without a registry: from the recipe and from
facts/, never built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.hardware.facts import image_environment
from hpcstack.lock.check import with_open_items
from hpcstack.lock.model import TEMPLATE_VERSION, UNKNOWN, Lock, LockedBase, LockedPlatform

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.recipe.catalog import Recipe
    from hpcstack.recipe.model import Stack

# Debian's and Ubuntu's, without what a base adds
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def known_lock(stack: Stack) -> Lock:
    """A stand-in for the lock of STACK, to look at what would be rendered; `Lock.not_looked_up`
    says what it lacks.
    """
    base = stack.base
    platforms = {
        name: LockedPlatform(
            digest=base.digest or UNKNOWN, environment=_environment(base.image, name)
        )
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


def _environment(image: str, platform: str) -> dict[str, str]:
    return {"PATH": PATH, **image_environment(image, platform)}


def list_lacking(stack: Stack, platform: str) -> list[str]:
    """What `known_lock` could not look up, a line each, and what to type for it."""
    image = stack.base.image
    known = sorted(image_environment(image, platform))
    of_them = (
        f"only {', '.join(known)} are known, from hpcstack's own facts"
        if known
        else "nothing is known of it"
    )
    parts = [
        name
        for name, setting in stack.environment.items()
        if setting.set is None and name not in known
    ]
    return [
        "NOT LOOKED UP: no lock, and no registry was asked or answered",
        *(
            []
            if stack.base.digest
            else [f"the digest of {image}: the tag may mean another image tomorrow"]
        ),
        (
            f"the environment of {image}: {of_them}; its entrypoint and working directory are not "
            f"known either"
        ),
        *([f"so these are shown without the base's part: {', '.join(parts)}"] if parts else []),
        *([f"the versions of packages: {', '.join(_kinds(stack))}"] if _kinds(stack) else []),
        f"hpcstack lock {stack.full_name} looks all of it up; hpcstack build never takes this text",
    ]


def _kinds(stack: Stack) -> list[str]:
    packages = stack.packages
    kinds = {
        "apt": packages.apt,
        "pip": packages.pip,
        "conda": packages.conda.packages,
        "source": packages.source,
    }
    return [kind for kind, wanted in kinds.items() if wanted]


def base_environment(recipe: Recipe, lock: Lock | None, platform: str = "") -> Mapping[str, str]:
    """The variables of the base: as the registry said when it was locked, else as far as facts/
    knows the image.

    Of PLATFORM, by default the recipe's first.
    """
    base = recipe.stack.base
    platform = platform or base.platforms[0]
    if lock and (lock.base.registry, lock.base.repository, lock.base.tag) == (
        base.registry,
        base.repository,
        base.tag,
    ):
        known = lock.base.platforms
        return known.get(platform, next(iter(known.values()))).environment
    return image_environment(base.image, platform)
