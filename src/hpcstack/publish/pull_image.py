"""Bring an image back that `push` has put into a registry, with its attested.

Nothing is believed before it is checked: the signature of the manifest, that of the provenance, the
digests that the provenance has of what lies beside it, and that the image is the stack that the
recipe here says.

Tested in tests/unit/publish/test_push_image.py and tests/integration/test_pushing.py.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hpcstack.build.base import find_host_platform
from hpcstack.build.build import describe_image_of
from hpcstack.build.request import request_build
from hpcstack.core.errors import AnswerIsNo, InputError, NotInRegistry, RegistryError
from hpcstack.core.files import digest_of
from hpcstack.core.untrusted import parse_untrusted_json
from hpcstack.lock.model import MAX_LOCK, parse_lock
from hpcstack.oci.importer import VERSION, pack_image
from hpcstack.oci.push import digest_bytes, list_referrers
from hpcstack.oci.reference import Reference, parse_registry_image
from hpcstack.oci.signed import MAX_ENVELOPE, read_key
from hpcstack.oci.sources import open_source
from hpcstack.publish.push_image import KINDS, PREDICATE
from hpcstack.recipe.model import Base
from hpcstack.report import Report
from hpcstack.store.artifact import IMAGE
from hpcstack.store.workspace import make_workspace

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcstack.build.workbench import Workbench
    from hpcstack.lock.model import Lock
    from hpcstack.oci.client import Registry
    from hpcstack.oci.signed import Key
    from hpcstack.recipe.catalog import Recipe
    from hpcstack.store.artifact import Artifact

MAX_ATTACHED = 64 << 20  # bytes of an SBOM or a report
ENGINE = "pulled"  # what an image that was not built here says of its engine


@dataclass(frozen=True)
class Attested:
    """What is attached to an image in a registry, checked against its provenance.

    SIGNED_BY names the key that has signed both the image and its provenance; it is empty where no
    key was given, and nothing vouches for any of it.
    """

    digest: str  # of the image's manifest
    platform: str
    lock: Lock
    sbom: str
    report: Report | None
    provenance: dict[str, Any] = field(repr=False)
    signed_by: str = ""
    squashfs: str = ""  # sha256 of the squashfs that was pushed


@dataclass(frozen=True)
class _Files:
    """The files that are attached to an image, by the names of KINDS."""

    contents: dict[str, bytes]

    def need(self, what: str, image: str) -> bytes:
        """Return the content of WHAT. Raise AnswerIsNo where it is not attached to IMAGE."""
        if what not in self.contents:
            raise AnswerIsNo(
                f"{image} has no {what} attached: hpcstack did not push it, or what was attached "
                "was not copied with it",
                "hpcstack import takes any image; oras copy --recursive copies what is attached",
                page="push-an-image",
            )
        return self.contents[what]


@dataclass(frozen=True)
class PushedImage:
    """An image in a registry, what is attached to it, and notes on what could not be checked."""

    base: Base
    attested: Attested
    notes: tuple[str, ...] = ()


def read_pushed(image: str, key_file: str, registry: Registry) -> PushedImage:
    """Return the image that IMAGE names, REGISTRY/NAME:TAG, checked by what is attached to it.

    KEY_FILE holds the public key of whoever pushed it; by default it is the one that the site names
    for that registry. Raise AnswerIsNo where something is wrong.
    """
    base = parse_registry_image(image)
    named = key_file or registry.site.registry(base.registry).signature_key
    where = "--key" if key_file else f"registries.{base.registry}.signature_key in site.yaml"
    key = read_key(named, where) if named else None

    attested = read_attested(base, key, registry)
    notes = []
    if not key:
        notes.append("no key was named: nobody vouches for it (--key FILE)")
    try:
        check_base_layers(base, attested, registry)
    except NotInRegistry as error:
        notes.append(f"its base is not in its registry any more: {error.message}")
    except RegistryError as error:
        notes.append(f"its base's registry was not asked: {error.message}")
    return PushedImage(base, attested, tuple(notes))


def read_attested(base: Base, key: Key | None, registry: Registry) -> Attested:
    """Return what is known of the image BASE, by what is attached to it in its registry.

    Raise AnswerIsNo where KEY has not signed it, or something attached is not what the provenance
    says; RegistryError where the registry does not answer.
    """
    platform = find_host_platform()
    found = registry.image(base, platform)
    digest = found.digest
    attached = _fetch_attached(base, digest, registry)

    if key and not any(key.has_signed(one, digest) for one in registry.statements(base, digest)):
        raise AnswerIsNo(
            f"{base.image} is not signed by the key in {key.file}",
            "do not use it, or name the key of whoever pushed it: --key",
            page="push-an-image",
        )
    statement = _open_provenance(attached.need("provenance", base.image), base, key)
    _check_statement(statement, digest, attached, base)

    lock_text = attached.need("lock", base.image)
    report = None
    if "report" in attached.contents:
        try:
            report = Report.model_validate_json(attached.contents["report"])
        except ValueError:
            raise AnswerIsNo(
                f"the report of {base.image} is not one", page="push-an-image"
            ) from None
    return Attested(
        digest=digest,
        platform=platform,
        lock=parse_lock(lock_text, f"the lock of {base.image}").lock,
        sbom=attached.need("sbom", base.image).decode("utf-8", "replace"),
        report=report,
        provenance=statement,
        signed_by=key.file if key else "",
        squashfs=_list_byproducts(statement).get("image.sqsh", ""),
    )


def _fetch_attached(base: Base, digest: str, registry: Registry) -> _Files:
    """Return what is attached to the manifest DIGEST, of each kind the last one that is listed."""
    kinds = {kind: what for what, (kind, _) in KINDS.items()}
    contents = {}
    for one in list_referrers(registry, base, digest):
        what = kinds.get(str(one.get("artifactType", "")))
        if not what:
            continue
        limit = {"lock": MAX_LOCK, "provenance": MAX_ENVELOPE}.get(what, MAX_ATTACHED)
        try:
            contents[what] = registry.fetch_attached(base, one["digest"], digest, limit)
        except NotInRegistry:  # the list may be older than what it lists
            continue
    return _Files(contents)


def _open_provenance(content: bytes, base: Base, key: Key | None) -> dict[str, Any]:
    """Return the statement in CONTENT, which KEY must have signed if there is one."""
    payload: bytes | None = content
    if key:
        payload = key.open_envelope(content)
        if payload is None:
            raise AnswerIsNo(
                f"the provenance of {base.image} is not signed by the key in {key.file}",
                "do not use the image, or name the key of whoever pushed it: --key",
                page="push-an-image",
            )
    else:
        payload = _read_unsigned(content)
    try:
        return parse_untrusted_json(payload or b"", MAX_ENVELOPE)
    except ValueError:
        raise AnswerIsNo(
            f"the provenance of {base.image} is not a statement", page="push-an-image"
        ) from None


def _read_unsigned(content: bytes) -> bytes:
    """Return the statement in CONTENT, whether it is in an envelope or not."""
    import base64

    try:
        found = parse_untrusted_json(content, MAX_ENVELOPE)
        if "payload" in found:
            return base64.b64decode(found["payload"], validate=True)
    except (ValueError, TypeError):
        pass
    return content


def _check_statement(statement: dict[str, Any], digest: str, attached: _Files, base: Base) -> None:
    """Raise AnswerIsNo where STATEMENT is not about the image DIGEST, or of other files."""
    try:
        subjects = [str(one["digest"]["sha256"]) for one in statement["subject"]]
        is_provenance = statement["predicateType"] == PREDICATE
        named = _list_byproducts(statement)
    except (KeyError, TypeError, AttributeError):
        subjects, is_provenance, named = [], False, {}
    if not is_provenance or digest.removeprefix("sha256:") not in subjects:
        raise AnswerIsNo(
            f"the provenance attached to {base.image} is of something else", page="push-an-image"
        )

    for what, content in attached.contents.items():
        if what == "provenance":
            continue
        if named.get(KINDS[what][1]) != digest_bytes(content).removeprefix("sha256:"):
            raise AnswerIsNo(
                f"the {what} attached to {base.image} is not the one that its provenance names",
                "somebody has replaced it: do not use it",
                page="push-an-image",
            )


def _list_byproducts(statement: dict[str, Any]) -> dict[str, str]:
    """Return {name: sha256} of what STATEMENT says was made beside the image."""
    rows = statement["predicate"]["runDetails"]["byproducts"]
    return {str(one["name"]): str(one["digest"]["sha256"]) for one in rows}


def check_base_layers(base: Base, attested: Attested, registry: Registry) -> int:
    """Return how many layers of the image BASE are those of the base in its lock, digest by digest.

    Raise AnswerIsNo where they are not. The registry of that base is asked.
    """
    lock = attested.lock
    digest = lock.platform(attested.platform).digest
    below = Base.model_validate({"image": f"{lock.base.registry}/{lock.base.repository}@{digest}"})
    expected = [layer.digest for layer in registry.image(below, attested.platform).layers]
    found = [layer.digest for layer in registry.image(base, attested.platform).layers]
    if found[: len(expected)] != expected or len(found) != len(expected) + 1:
        raise AnswerIsNo(
            f"the layers of {base.image} are not those of {lock.base_name()} and one more",
            "do not use it: its provenance says something else",
            page="push-an-image",
        )
    return len(expected)


def pull_image(
    pushed: PushedImage, find_recipe: Callable[[str], Recipe], bench: Workbench
) -> Artifact:
    """Import the image PUSHED into the store, as an image of its stack.

    FIND_RECIPE returns the recipe of a stack here. Raise InputError where that is another recipe
    than the one of which the image was made. An image that was pulled before is returned as it is.
    """
    base, attested = pushed.base, pushed.attested
    lock = attested.lock
    recipe = find_recipe(lock.stack)
    if recipe.stack.checksum() != lock.spec_sha256:
        raise InputError(
            f"{base.image} was made of another recipe than the {lock.stack} that is here, "
            f"{recipe.path}",
            "take the recipe that it was made of, from the repository where that is kept",
            page="push-an-image",
        )

    site, store = bench.site, bench.store
    named = f"{ENGINE} {attested.digest} {VERSION} {site.build.compression}"
    key = hashlib.sha256(named.encode()).hexdigest()[:40]
    known = store.artifact(key)
    if known:
        return known

    at = f"{base.registry}/{base.repository}@{attested.digest}"
    pinned = Base.model_validate({"image": at})
    source = open_source(Reference("docker", base=pinned), attested.platform, bench.registry)
    request = request_build(recipe, lock, site, bench.runner, attested.platform)
    with store.incoming() as incoming, make_workspace(site, bench.runner, 0) as work:
        done = pack_image(
            source,
            incoming / IMAGE,
            work / "layers",
            site.build.compression,
            bench.runner,
            bench.progress,
            lambda _: [],  # what runtimes read is in the image already
            at,
            site.build.bounds.as_bounds(),
            rooted=True,
            sharing=site.sharing,
        )
        made = describe_image_of(request, done.path, digest_of(done.path))
        artifact = replace(made, key=key, engine=ENGINE)
        log = work / "pull.log"
        log.write_text(f"pulled from {at}\n{json.dumps(attested.provenance, indent=1)}\n")
        return store.put(artifact, incoming / IMAGE, log, lock=lock.file_text())
