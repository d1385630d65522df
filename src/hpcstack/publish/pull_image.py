"""Bring an image back that `push` has put into a registry, with its evidence.

Nothing is believed before it is checked: the signature of the manifest, that of the provenance, the
digests that the provenance has of what lies beside it, and that the image is the stack that the
recipe here says.

Tested in tests/unit/publish/test_push_image.py and tests/integration/test_pushing.py.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hpcstack.build.base import find_host_platform
from hpcstack.build.build import describe_image_of
from hpcstack.build.options import BuildOptions
from hpcstack.build.request import request_build
from hpcstack.core.budget import Budget
from hpcstack.core.errors import AnswerIsNo, InputError, NotInRegistry, RegistryError
from hpcstack.core.files import digest_of
from hpcstack.core.untrusted import parse_untrusted_json
from hpcstack.lock.model import MAX_LOCK, parse_lock
from hpcstack.oci.importer import VERSION, pack_image
from hpcstack.oci.push import digest_bytes, list_referrers
from hpcstack.oci.reference import Reference, parse_registry_image
from hpcstack.oci.signed import MAX_ENVELOPE, read_key
from hpcstack.oci.sources import open_source
from hpcstack.publish.push_image import KINDS, PREDICATE, TESTED
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
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact

MAX_ATTACHED = 64 << 20  # bytes of an SBOM or a report
MOST_ATTACHED = 50  # files of a kind that are looked at
ATTACHED_S = 600  # seconds for all of them
MAX_NAME = 300
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
    pushed_as: str = ""  # REGISTRY/NAME that the provenance names
    signed_by: str = ""
    squashfs: str = ""  # sha256 of the squashfs that was pushed


@dataclass(frozen=True)
class PushedImage:
    """An image in a registry, what is attached to it, and notes on what could not be checked.

    BASE names it by its digest.
    """

    base: Base
    attested: Attested
    notes: tuple[str, ...] = ()


def read_pushed(
    image: str, key_file: str, registry: Registry, *, unsigned: bool = False, platform: str = ""
) -> PushedImage:
    """Return the image that IMAGE names, REGISTRY/NAME:TAG, checked by what is attached to it.

    KEY_FILE holds the public key of whoever pushed it; by default it is the one that the site names
    for that registry. UNSIGNED allows that there is no key. PLATFORM is this machine's by default.
    Raise AnswerIsNo where something is wrong.
    """
    base = parse_registry_image(image)
    named = key_file or registry.site.registry(base.registry).signature_key
    where = "--key" if key_file else f"registries.{base.registry}.signature_key in site.yaml"
    key = read_key(named, where) if named and not unsigned else None
    if not key and not unsigned:
        raise InputError(
            f"nobody vouches for {image} without a key to check it with",
            "name the public key of whoever pushed it: --key FILE; or --unsigned",
            page="push-an-image",
        )

    found = registry.image(base, platform or find_host_platform())
    # From here on its digest counts, whatever the tag will mean in a moment.
    pinned = base.model_copy(update={"image": f"{base.registry}/{base.repository}@{found.digest}"})
    attested = read_attested(pinned, found.platform, key, registry)

    notes = []
    if not key:
        notes.append("NOT signed: nobody vouches for it")
    if attested.pushed_as != f"{base.registry}/{base.repository}":
        notes.append(f"it was pushed as {attested.pushed_as}, and copied here")
    lock = attested.lock
    if not key and lock.base.registry not in registry.site.registries:
        notes.append("its base's layers were not compared: an unsigned lock names its registry")
        return PushedImage(pinned, attested, tuple(notes))
    try:
        check_base_layers(pinned, attested, registry)
    except NotInRegistry as error:
        notes.append(f"its base is not in its registry any more: {error.message}")
    except RegistryError as error:
        notes.append(f"its base's registry was not asked: {error.message}")
    return PushedImage(pinned, attested, tuple(notes))


def read_attested(base: Base, platform: str, key: Key | None, registry: Registry) -> Attested:
    """Return what is known of the image BASE, which names a digest, by what is attached to it.

    Others may attach files of the same kinds. What counts is a provenance that KEY has signed, and
    the files that it names. Raise AnswerIsNo where KEY has not signed the image or none such is
    attached; RegistryError where the registry does not answer.
    """
    digest = base.digest
    if key and not any(key.has_signed(one, digest) for one in registry.statements(base, digest)):
        raise AnswerIsNo(
            f"{base.image} is not signed by the key in {key.file}",
            "do not use it, or name the key of whoever pushed it: --key",
            page="push-an-image",
        )

    attached = _fetch_attached(base, digest, registry)
    statement = _choose_provenance(attached.get("provenance", []), digest, base, key)
    named = list_byproducts(statement)
    lock = _find_named("lock", attached, named, base)
    sbom = _find_named("sbom", attached, named, base)
    report = None
    if KINDS["report"][1] in named:
        text = _find_named("report", attached, named, base)
        try:
            report = Report.model_validate_json(text)
        except ValueError:
            raise AnswerIsNo(
                f"the report of {base.image} is not one", page="push-an-image"
            ) from None
    return Attested(
        digest=digest,
        platform=platform,
        lock=parse_lock(lock, f"the lock of {base.image}").lock,
        sbom=sbom.decode("utf-8", "replace"),
        report=report,
        provenance=statement,
        pushed_as=str(statement["subject"][0].get("name", ""))[:MAX_NAME],
        signed_by=key.file if key else "",
        squashfs=named.get("image.sqsh", ""),
    )


def _fetch_attached(base: Base, digest: str, registry: Registry) -> dict[str, list[bytes]]:
    """Return {what: contents} of the files that are attached to the manifest DIGEST.

    What is no file of ours, or is too large, is left out. RegistryError where all that takes longer
    than ATTACHED_S.
    """
    budget = Budget(base.registry, RegistryError, "try again later", 0, seconds=ATTACHED_S)
    kinds = {kind: what for what, (kind, _) in KINDS.items()}
    out: dict[str, list[bytes]] = {}
    for one in list_referrers(registry, base, digest):
        what = kinds.get(str(one.get("artifactType", "")))
        if not what or len(out.setdefault(what, [])) >= MOST_ATTACHED:
            continue
        budget.check_time()
        limit = {"lock": MAX_LOCK, "provenance": MAX_ENVELOPE}.get(what, MAX_ATTACHED)
        content = registry.fetch_attached(base, one["digest"], digest, limit)
        if content is not None:
            out[what].append(content)
    return out


def _choose_provenance(
    found: list[bytes], digest: str, base: Base, key: Key | None
) -> dict[str, Any]:
    """Return the statement that counts: about DIGEST, signed by KEY, and with the newest report."""
    statements = []
    for content in found:
        payload = key.open_envelope(content) if key else _read_unsigned(content)
        statement = parse_provenance(payload, digest) if payload else None
        if statement:
            statements.append(statement)
    if statements:
        return max(statements, key=_find_test_day)

    if found and key:
        raise AnswerIsNo(
            f"no provenance of {base.image} is signed by the key in {key.file}",
            "do not use the image, or name the key of whoever pushed it: --key",
            page="push-an-image",
        )
    raise AnswerIsNo(
        f"{base.image} has no provenance attached: hpcstack did not push it, or what was attached "
        "was not copied with it",
        "hpcstack import takes any image; oras copy --recursive copies what is attached",
        page="push-an-image",
    )


def _find_test_day(statement: dict[str, Any]) -> str:
    parameters = statement["predicate"].get("buildDefinition", {}).get("internalParameters", {})
    return str(parameters.get(TESTED, ""))


def _read_unsigned(content: bytes) -> bytes:
    """Return the statement in CONTENT, whether it is in an envelope or not."""
    try:
        found = parse_untrusted_json(content, MAX_ENVELOPE)
        if "payload" in found:
            return base64.b64decode(found["payload"], validate=True)
    except (ValueError, TypeError):
        pass
    return content


def parse_provenance(payload: bytes, digest: str) -> dict[str, Any] | None:
    """Return the provenance in PAYLOAD, if it is one of the image DIGEST; else None."""
    try:
        statement = parse_untrusted_json(payload, MAX_ENVELOPE)
        subjects = [str(one["digest"]["sha256"]) for one in statement["subject"]]
        is_about = digest.removeprefix("sha256:") in subjects
        list_byproducts(statement)
        _find_test_day(statement)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return statement if is_about and statement.get("predicateType") == PREDICATE else None


def list_byproducts(statement: dict[str, Any]) -> dict[str, str]:
    """Return {name: sha256} of what STATEMENT says was made beside the image."""
    rows = statement["predicate"]["runDetails"]["byproducts"]
    return {str(one["name"]): str(one["digest"]["sha256"]) for one in rows}


def _find_named(
    what: str, attached: dict[str, list[bytes]], named: dict[str, str], base: Base
) -> bytes:
    """Return the attached file WHAT whose sha256 is in NAMED. Raise AnswerIsNo for none."""
    wanted = named.get(KINDS[what][1], "")
    for content in attached.get(what, []):
        if digest_bytes(content).removeprefix("sha256:") == wanted:
            return content
    raise AnswerIsNo(
        f"no {what} that is attached to {base.image} is the one that its provenance names",
        "somebody has removed or replaced it: push the image again",
        page="push-an-image",
    )


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


def _make_key(pushed: PushedImage, site: Site) -> str:
    """Return the key that the image PUSHED has in the store, once it is there."""
    named = f"{ENGINE} {pushed.attested.digest} {VERSION} {site.build.compression}"
    return hashlib.sha256(named.encode()).hexdigest()[:40]


def find_pulled(pushed: PushedImage, bench: Workbench) -> Artifact | None:
    """Return the image PUSHED where it was pulled before; else None."""
    return bench.store.artifact(_make_key(pushed, bench.site))


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
    key = _make_key(pushed, site)
    known = find_pulled(pushed, bench)
    if known:
        return known

    at = base.image
    source = open_source(Reference("docker", base=base), attested.platform, bench.registry)
    request = request_build(recipe, lock, site, bench.runner, BuildOptions(attested.platform))
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
        made = describe_image_of(request, done.path, digest_of(done.path), bench.runner)
        artifact = replace(made, key=key, engine=ENGINE)
        log = work / "pull.log"
        signed = (
            f"signed by the key in {attested.signed_by}" if attested.signed_by else "NOT signed"
        )
        said = json.dumps(attested.provenance, indent=1)
        log.write_text(f"pulled from {at}, {signed}\n{said}\n")
        return store.put(artifact, incoming / IMAGE, log, lock=lock.file_text())
