"""Make a lock of a stack from a few small requests to the registry, without pulling the image.

Tested in tests/unit/resolve/test_signed_base.py and tests/unit/lock/test_lock.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from hpcstack.lock.check import with_open_items
from hpcstack.lock.model import TEMPLATE_VERSION, Lock, LockedBase, LockedPlatform

if TYPE_CHECKING:
    from hpcstack.oci.client import Answer
    from hpcstack.recipe.model import Base, Stack


class ManifestReader(Protocol):
    """What can describe a base image: hpcstack.oci.client.Registry."""

    def look_up(self, base: Base) -> Answer: ...


def resolve_base(stack: Stack, registry: ManifestReader) -> Lock:
    """Return the lock of STACK, as far as that needs no pull; the rest is listed as open.

    Raise RegistryError if the registry refuses, or has no image for a platform.
    """
    answer = registry.look_up(stack.base)
    platforms = {
        name: _platform(answer.manifests[name], answer.configs[name], answer.sizes[name])
        for name in stack.base.platforms
    }

    base = LockedBase(
        registry=stack.base.registry,
        repository=stack.base.repository,
        tag=stack.base.tag,
        index_digest=answer.index_digest,
        answered_by=answer.answered_by,
        platforms=platforms,
    )

    # Sources whose recipe names a commit need no look at their repository.
    commits = {source.name: source.commit for source in stack.packages.source if source.commit}
    lock = Lock(
        stack=stack.full_name,
        spec_sha256=stack.checksum(),
        template_version=TEMPLATE_VERSION,
        base=base,
        sources=commits,
    )
    return with_open_items(lock, stack)


def _platform(digest: str, config: dict[str, Any], size: int) -> LockedPlatform:
    """Return what a lock keeps of the image CONFIG. SIZE is the bytes of its compressed layers."""
    inner = config.get("config") or {}
    pairs = (entry.partition("=") for entry in inner.get("Env") or [])
    return LockedPlatform(
        digest=digest,
        environment={name: value for name, _, value in pairs},
        labels=inner.get("Labels") or {},
        entrypoint=tuple(inner.get("Entrypoint") or ()),
        command=tuple(inner.get("Cmd") or ()),
        workdir=inner.get("WorkingDir") or "",
        compressed_bytes=size,
    )
