"""Locks for goldens: recorded ones where there are, else made of what facts/ knows, with digests
that never change.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from hpcstack.hardware import facts
from hpcstack.lock.check import with_open_items
from hpcstack.lock.model import TEMPLATE_VERSION, Lock, LockedBase, LockedPlatform, read_lock
from hpcstack.recipe.model import Stack

RECORDED = Path(__file__).resolve().parents[1] / "golden/locks"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def example_lock(stack: Stack) -> Lock:
    """The recorded lock of STACK, else one of its base alone."""
    path = RECORDED / f"{stack.full_name}.lock.json"
    return read_lock(path) if path.exists() else base_lock(stack)


def base_lock(stack: Stack) -> Lock:
    base = stack.base
    platforms = {name: _platform(stack, name) for name in base.platforms}
    lock = Lock(
        stack=stack.full_name,
        spec_sha256=stack.checksum(),
        template_version=TEMPLATE_VERSION,
        base=LockedBase(
            registry=base.registry,
            repository=base.repository,
            tag=base.tag,
            index_digest=_digest(base.image),
            answered_by="a golden, not a registry",
            platforms=platforms,
        ),
        sources={source.name: source.commit for source in stack.packages.source},
    )
    return with_open_items(lock, stack)


def _platform(stack: Stack, name: str) -> LockedPlatform:
    nvidias = stack.base.registry == "nvcr.io"
    return LockedPlatform(
        digest=_digest(f"{stack.base.image} {name}"),
        environment={"PATH": PATH, **facts.image_environment(stack.base.image, name)},
        entrypoint=("/opt/nvidia/nvidia_entrypoint.sh",) if nvidias else (),
        command=() if nvidias else ("/bin/bash",),
        workdir="/workspace" if nvidias else "",
    )


def _digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
