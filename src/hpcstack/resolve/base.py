"""From a stack to its lock, by one look into the registry, without a pull."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from hpcstack.lock.check import with_open_items
from hpcstack.lock.model import TEMPLATE_VERSION, Lock, LockedBase, LockedPlatform

if TYPE_CHECKING:
    from hpcstack.oci.client import Answer
    from hpcstack.recipe.model import Base, Stack


class ManifestReader(Protocol):
    """What can say of a base image what it is: hpcstack.oci.client.Registry."""

    def look_up(self, base: Base) -> Answer: ...


def resolve_base(stack: Stack, registry: ManifestReader) -> Lock:
    """The lock of STACK, as far as no pull is needed.

    RegistryError if the registry refuses or lacks a platform.
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
