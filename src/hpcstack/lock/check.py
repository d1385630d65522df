"""Whether a lock is that of a recipe, and what it leaves open. Offline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.lock.model import TEMPLATE_VERSION, Lock

if TYPE_CHECKING:
    from hpcstack.recipe.model import Stack


def unresolved(stack: Stack, lock: Lock) -> tuple[str, ...]:
    """What LOCK leaves to the build, in words: `pip of linux/arm64`."""
    wanted = {
        "apt": bool(stack.packages.apt),
        "pip": bool(stack.packages.pip),
        "conda": bool(stack.packages.conda.packages),
    }
    out = [
        f"{kind} of {name}"
        for name, platform in lock.base.platforms.items()
        for kind, asked in wanted.items()
        if asked and getattr(platform, kind) is None
    ]
    for name, platform in lock.base.platforms.items():
        isolated = [e for e in platform.source_distributions() if not stack.packages.built_with_base(e.name)]
        if isolated and platform.pip_build is None:
            projects = ", ".join(f"{entry.name} {entry.version}" for entry in isolated)
            out.append(f"what builds {projects} of {name}")
    return (*out, *(f"source {s.name}" for s in stack.packages.source if not lock.sources.get(s.name)))


def find_staleness(stack: Stack, lock: Lock) -> list[str]:
    """Why LOCK is not the lock of STACK; empty if it is. Offline."""
    reasons = ["no registry has said what its base is"] if lock.not_looked_up else []
    adopted = (lock.adopted.sha256 if lock.adopted else "", stack.adopted.sha256 if stack.adopted else "")
    if adopted[0] != adopted[1]:
        reasons.append("the recipe and the lock are of different adopted images")
    if lock.stack != stack.full_name:
        reasons.append(f"the lock is of {lock.stack}")
    if lock.spec_sha256 != stack.checksum():
        reasons.append("the recipe has changed since it was locked")
    locked = (lock.base.registry, lock.base.repository, lock.base.tag)
    if locked != (stack.base.registry, stack.base.repository, stack.base.tag):
        reasons.append(f"the base was {'/'.join(locked[:2])}:{locked[2]} and is {stack.base.image}")
    missing = [name for name in stack.base.platforms if name not in lock.base.platforms]
    if missing:
        reasons.append(f"platforms that are not locked: {', '.join(missing)}")
    return reasons


def find_drift(lock: Lock) -> list[str]:
    """Why LOCK would build another image than when it was made, though the recipe is the same. Offline."""
    if lock.template_version == TEMPLATE_VERSION or lock.adopted:
        return []
    return [f"hpcstack's templates were version {lock.template_version} and are {TEMPLATE_VERSION}"]


@dataclass(frozen=True)
class Staleness:
    """What is wrong with a recipe's lock (`reasons`; empty if it is current), and what it leaves `open`."""

    reasons: tuple[str, ...]
    open: tuple[str, ...] = ()

    def refused(self, platform: str) -> list[str]:
        """Why a build of PLATFORM would not be exactly what was locked."""
        left = [what for what in self.open if what.endswith(f" of {platform}") or what.startswith("source ")]
        return [*self.reasons, *(f"it leaves open: {', '.join(left)}" for _ in left[:1])]
