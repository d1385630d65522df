"""Check and record who signed a base when it is locked, and enforce what the site requires."""

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
    """Return LOCK with the fingerprint of the site's key, if that key has signed BASE.

    A signature of the image's index will do, or one of each of its platforms. Raise InputError if
    BASE has signatures, but none by that key. If the site requires a signature, raise it also for
    an unsigned base, and for a registry for which site.yaml names no key.
    """
    key = _key_for(lock, bench.site)
    if key is None:
        refuse_unsigned(lock, bench.site)
        return lock

    of_index = lock.base.index_digest
    of_platforms = [platform.digest for platform in lock.base.platforms.values()]
    is_signed_at_all = False
    signed = set()
    for digest in dict.fromkeys([of_index, *of_platforms]):  # each once
        statements = bench.registry.statements(base, digest)
        if statements:
            is_signed_at_all = True
        if any(key.has_signed(statement, digest) for statement in statements):
            signed.add(digest)

    if of_index in signed or signed.issuperset(of_platforms):
        bench.progress(f"{base.image} is signed by the key in {key.file}")
        signed_base = lock.base.model_copy(update={"signed_by": key.fingerprint})
        return lock.model_copy(update={"base": signed_base})
    if is_signed_at_all:
        raise InputError(
            f"{base.image} has signatures, and none of them is of the key in {key.file}",
            f"check that this is the key of its images (registries.{base.registry}.signature_key "
            "in site.yaml); if it is, do not use this image: somebody has changed it on its "
            "way",
            page="sign-images",
        )
    if bench.site.policy.require_signed_base:
        raise InputError(
            f"{base.image} has no signature",
            f"take a base that is signed: {REQUIRED} wants one",
            page="sign-images",
        )
    bench.progress(
        f"NOTE: {base.image} has no signature, so the key in {key.file} cannot vouch for it"
    )
    return lock


class MissingSignature(NamedTuple):
    """Why a lock does not satisfy the site, and what to do about it."""

    reason: str
    remedy: str


def find_missing_signature(lock: Lock, site: Site) -> MissingSignature | None:
    """Return what LOCK lacks if the site requires a signature of its base; None if nothing."""
    if not site.policy.require_signed_base:
        return None
    key = _key_for(lock, site)
    if key is None:
        return MissingSignature(
            f"site.yaml wants signed bases, and names no key for {lock.base.registry}",
            f"name it as registries.{lock.base.registry}.signature_key, or change {REQUIRED}",
        )
    if lock.base.signed_by != key.fingerprint:
        return MissingSignature(
            f"its lock does not say that its base is signed by the key in {key.file}",
            f"hpcstack lock {lock.stack}",
        )
    return None


def refuse_unsigned(lock: Lock, site: Site) -> None:
    """Raise InputError if the site requires a signature of the base that LOCK does not record."""
    found = find_missing_signature(lock, site)
    if found:
        raise InputError(f"{lock.stack}: {found.reason}", found.remedy, page="sign-images")


def _key_for(lock: Lock, site: Site) -> Key | None:
    """Return the key that the site trusts for the registry of LOCK's base, if it names one."""
    file = site.registry(lock.base.registry).signature_key
    if not file:
        return None
    return read_key(file)
