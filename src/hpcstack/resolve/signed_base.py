"""Who signed a base: looked at when it is locked, written into the lock, and held against what the
site requires.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hpcstack.core.errors import InputError
from hpcstack.oci.signed import Key, read_key

if TYPE_CHECKING:
    from hpcstack.build.workbench import Workbench
    from hpcstack.lock.model import Lock
    from hpcstack.recipe.model import Base
    from hpcstack.site.load import Site

REQUIRED = "policy.require_signed_base in site.yaml"


def record_signature(lock: Lock, base: Base, bench: Workbench) -> Lock:
    """LOCK with the fingerprint of the site's key, if that key has signed BASE, or each platform of
    it.

    InputError where the base has signatures of which none is the key's, and, where the site
    requires a signature, for none, and for a registry without a key.
    """
    key = _key_for(lock, bench.site)
    if key is None:
        refuse_unsigned(lock, bench.site)
        return lock
    digests = [
        lock.base.index_digest,
        *(platform.digest for platform in lock.base.platforms.values()),
    ]
    statements = {
        digest: bench.registry.statements(base, digest) for digest in dict.fromkeys(digests)
    }
    signed = {
        digest
        for digest, found in statements.items()
        if any(key.has_signed(one, digest) for one in found)
    }
    if lock.base.index_digest in signed or set(digests[1:]) <= signed:
        bench.progress(f"{base.image} is signed by the key in {key.file}")
        return lock.model_copy(
            update={"base": lock.base.model_copy(update={"signed_by": key.fingerprint})}
        )
    if any(statements.values()):
        raise InputError(
            f"{base.image} has signatures, and none of them is of the key in {key.file}",
            f"is that the key of its images (registries.{base.registry}.signature_key in "
            f"site.yaml)? If it is, do not "
            "use this image: somebody has changed it on its way",
        )
    if bench.site.policy.require_signed_base:
        raise InputError(
            f"{base.image} has no signature", f"take a base that is signed; {REQUIRED} wants one"
        )
    bench.progress(
        f"NOTE: {base.image} has no signature, so the key in {key.file} says nothing of it"
    )
    return lock


class MissingSignature(NamedTuple):
    """Why a lock is not what the site requires, and what to do about it."""

    reason: str
    remedy: str


def find_missing_signature(lock: Lock, site: Site) -> MissingSignature | None:
    """What LOCK lacks where the site requires a signature of its base; None where it lacks nothing."""
    if not site.policy.require_signed_base:
        return None
    key = _key_for(lock, site)
    if key is None:
        return MissingSignature(
            f"site.yaml has no key of {lock.base.registry}'s, and wants signed bases",
            f"registries.{lock.base.registry}.signature_key, or {REQUIRED}",
        )
    if lock.base.signed_by != key.fingerprint:
        return MissingSignature(
            f"its lock does not say that its base is signed by the key in {key.file}",
            f"hpcstack lock {lock.stack}",
        )
    return None


def refuse_unsigned(lock: Lock, site: Site) -> None:
    """InputError where the site requires a signature of the base that LOCK does not record."""
    if found := find_missing_signature(lock, site):
        raise InputError(f"{lock.stack}: {found.reason}", found.remedy)


def _key_for(lock: Lock, site: Site) -> Key | None:
    """The key that the site trusts for the registry of LOCK's base."""
    file = site.registry(lock.base.registry).signature_key
    return read_key(file) if file else None
