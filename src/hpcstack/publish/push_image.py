"""Push a stack's image to a registry: the base's own layers, one layer with what the stack adds, and
the evidence.

The base's layers keep their digests, so a registry that has them takes no byte of them again. What
is known of the image is attached to it: SBOM, lock, smoke reports, and its provenance.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, BinaryIO

from hpcstack import __version__
from hpcstack.build.base import provide_base
from hpcstack.core.errors import AnswerIsNo, InputError, RegistryError, StoreError
from hpcstack.core.files import writing_below
from hpcstack.core.untrusted import parse_untrusted_json
from hpcstack.lock.model import read_lock
from hpcstack.oci.compress import compress_layer
from hpcstack.oci.delta_layer import find_delta, write_delta
from hpcstack.oci.metadata import SINGULARITY, list_files_above, list_files_below
from hpcstack.oci.push import (
    OCI_CONFIG,
    OCI_INDEX,
    OCI_LAYER,
    OCI_MANIFEST,
    Descriptor,
    PushRegistry,
    digest_bytes,
)
from hpcstack.oci.reference import parse_registry_image
from hpcstack.oci.signed import (
    IN_TOTO,
    STATEMENT,
    CosignStatement,
    list_statements,
    make_signature_layer,
    make_signature_tag,
    read_private_key,
)
from hpcstack.publish.reports import find_reports
from hpcstack.recipe.model import Base
from hpcstack.render.steps import HOME
from hpcstack.squashfs.codec import Unreadable
from hpcstack.squashfs.read import Squashfs
from hpcstack.store.cache import cache_of
from hpcstack.store.contents import read_about, read_optional
from hpcstack.store.sbom import make_image_sbom
from hpcstack.store.store import LOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hpcstack.build.workbench import Workbench
    from hpcstack.lock.model import Lock
    from hpcstack.oci.client import Registry
    from hpcstack.oci.compress import CompressedLayer
    from hpcstack.oci.signed import PrivateKey
    from hpcstack.recipe.catalog import Recipe
    from hpcstack.recipe.model import Stack
    from hpcstack.report import Report
    from hpcstack.store.artifact import Artifact
    from hpcstack.store.store import Store

TESTED = "tested_on"
ENVELOPE = "application/vnd.dsse.envelope.v1+json"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:hpcstack:build:v1"
# {what is attached: (its type as an artifact, its name as a file)}
KINDS = {
    "sbom": ("application/vnd.cyclonedx+json", "sbom.json"),
    "lock": ("application/vnd.hpcstack.lock.v1+json", "lock.json"),
    "report": ("application/vnd.hpcstack.report.v1+json", "report.json"),
    "provenance": (IN_TOTO, "provenance.json"),
}
MAX_LABELS = 1 << 20
MOST_NAMED = 10
MAX_BESIDE = 16 << 20  # bytes of a signature or an attestation beside an image
TRIES = 4  # to fetch a layer of the base


@dataclass(frozen=True)
class PushRequest:
    """What is pushed, as what, and with which evidence.

    WITH_BASE allows the base's layers to be uploaded where the registry does not have them. KEY
    signs the image and its provenance; without it nothing is signed.
    """

    stack: Stack
    artifact: Artifact
    target: Base
    reports: tuple[Report, ...] = ()
    with_base: bool = False
    key: PrivateKey | None = None


def request_push(
    recipe: Recipe,
    artifact: Artifact,
    target: str,
    store: Store,
    *,
    with_base: bool = False,
    key_file: str = "",
    ask_passphrase: Callable[[str], str] = lambda _: "",
) -> PushRequest:
    """Return the request to push ARTIFACT, an image of RECIPE, as TARGET: REGISTRY/NAME[:TAG].

    By default the tag is the stack's version. KEY_FILE holds the private key to sign with; an empty
    one means not to sign. ASK_PASSPHRASE is called with its name if it is encrypted. Raise
    InputError where RECIPE has changed since the image was built of it, and for a name that is
    none.
    """
    stack = recipe.stack
    if stack.checksum() != _read_spec(artifact):
        raise InputError(
            f"the recipe of {artifact.stack} has changed since its image was built",
            f"hpcstack build {artifact.stack}",
            page="push-an-image",
        )
    named = _name_target(target, stack)
    key = read_private_key(key_file, lambda: ask_passphrase(key_file)) if key_file else None
    return PushRequest(
        stack,
        artifact,
        named,
        tuple(find_reports(stack.full_name, artifact.sha256, store)),
        with_base,
        key,
    )


def _name_target(text: str, stack: Stack) -> Base:
    """Return the image that TEXT names, by default with the version of STACK as its tag.

    Raise InputError for a digest, and for a name without a registry: what is meant for one's own
    must not become public by a host that was forgotten.
    """
    host, slash, _ = text.partition("/")
    if "@" in text or not slash or not (set(".:") & set(host) or host == "localhost"):
        raise InputError(
            f"{text!r} does not say where to push to",
            f"name a registry: hpcstack push {stack.full_name} registry.example.org/{stack.name}, "
            "for Docker Hub docker.io/USER/NAME",
            page="push-an-image",
        )
    if ":" not in text.rpartition("/")[2]:
        text = f"{text}:{stack.release_version}"
    return parse_registry_image(text)


def _read_spec(artifact: Artifact) -> str:
    """Return the checksum of the recipe that the image was built of, as it says itself."""
    return str(read_about(artifact.image).get("spec_sha256", ""))


@dataclass(frozen=True)
class Pushed:
    """An image in a registry: its name with tag and digest, and what it took to get it there."""

    image: str  # REGISTRY/NAME:TAG@sha256:...
    digest: str
    base_layers: int
    uploaded_base: int  # bytes of the base's layers that were uploaded
    delta_bytes: int  # of the layer with what the stack adds, compressed
    delta_plain_bytes: int
    sent: int  # bytes of all that was uploaded
    attached: dict[str, str] = field(default_factory=dict)  # {what: digest of its manifest}
    signed: bool = False


@dataclass(frozen=True)
class _Format:
    """The media types of an image: of its manifest, its config, and the layer that is added."""

    manifest: str
    config: str
    layer: str


OF_OCI = _Format(OCI_MANIFEST, OCI_CONFIG, OCI_LAYER)
OF_DOCKER = _Format(
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.container.image.v1+json",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
)


@dataclass(frozen=True)
class _BaseImage:
    """The base as its registry has it."""

    base: Base
    manifest: dict[str, Any]
    config: dict[str, Any]

    @property
    def format(self) -> _Format:
        """The format of the base, in which what is made of it is pushed, too.

        NVIDIA's images are of Docker's. Before Enroot imports an image it asks whether it may, and
        does not say that it takes OCI's: registries of the older kind (distribution 2) then answer
        that there is none.
        """
        return OF_DOCKER if self.manifest.get("mediaType") == OF_DOCKER.manifest else OF_OCI

    @property
    def layers(self) -> list[Descriptor]:
        """The layers, the lowest first."""
        return [
            Descriptor(one["mediaType"], one["digest"], one["size"])
            for one in self.manifest["layers"]
        ]


def push_image(request: PushRequest, bench: Workbench) -> Pushed:
    """Push the image of REQUEST to its target.

    Nothing is visible there before all of it is. Raise AnswerIsNo where the registry does not have
    the base's layers, and REQUEST does not allow to upload them.
    """
    artifact, target = request.artifact, request.target
    registry = PushRegistry(bench.site, target, warn=bench.progress)
    lock = _read_lock(artifact)
    say = bench.progress
    base = _read_base(lock, artifact.platform, bench)

    with ExitStack() as stack:
        file = stack.enter_context(_make_file(bench))
        say(f"comparing {artifact.stack} with its base")
        delta = _write_delta(request, base, lock, file, bench)

        uploaded = _provide_base_layers(request, base, registry, bench)
        say(f"pushing what {artifact.stack} adds: {delta.size / 1e6:.1f} MB")
        registry.upload_blob(
            delta.digest,
            delta.size,
            lambda: _reopen(file),
            lambda done: say.amount("layer", done, delta.size),
        )

    kinds = base.format
    config = registry.upload_bytes(_make_config(request, base, lock, delta), kinds.config)
    layers = [*base.layers, Descriptor(kinds.layer, delta.digest, delta.size)]
    manifest = {
        "schemaVersion": 2,
        "mediaType": kinds.manifest,
        "config": config.as_dict(),
        "layers": [layer.as_dict() for layer in layers],
    }
    subject = registry.put_manifest(manifest)
    attached = _attach_evidence(request, lock, subject, registry)
    if request.key:
        _sign(request.key, subject, registry)
    _tag(subject, request, registry)

    return Pushed(
        image=f"{target.registry}/{target.repository}:{target.tag}@{subject.digest}",
        digest=subject.digest,
        base_layers=len(base.layers),
        uploaded_base=uploaded,
        delta_bytes=delta.size,
        delta_plain_bytes=delta.plain_size,
        sent=registry.sent,
        attached=attached,
        signed=request.key is not None,
    )


def _tag(subject: Descriptor, request: PushRequest, registry: PushRegistry) -> None:
    """Let the target's tag mean SUBJECT, the image of REQUEST.

    Where it means an image for another platform already, it means both from now on: an index, which
    is signed, too.
    """
    tag, platform = request.target.tag, request.artifact.platform
    others = {
        name: one for name, one in registry.list_tagged(tag).items() if name not in ("", platform)
    }
    if not others:
        registry.put_manifest_again(subject, tag)
        return

    entries = []
    for name, one in sorted({**others, platform: subject}.items()):
        system, _, architecture = name.partition("/")
        about = {"os": system, "architecture": architecture}
        entries.append({**replace(one, annotations={}).as_dict(), "platform": about})
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}
    both = registry.put_manifest(index)
    if request.key:
        _sign(request.key, both, registry)
    registry.put_manifest_again(both, tag)


def _read_lock(artifact: Artifact) -> Lock:
    """Return the lock that the image was built from. Raise StoreError where it is gone."""
    if artifact.adopted:
        raise InputError(
            f"{artifact.stack} was adopted: what its base is cannot be proven, so it is not pushed",
            "push the image that it was adopted from, by skopeo or docker",
            page="push-an-image",
        )
    path = Path(artifact.folder) / LOCK
    try:
        lock = read_lock(path)
    except InputError:  # it is not there, or is none
        lock = None
    if lock is None or lock.digest() != artifact.lock_sha256:
        raise StoreError(
            f"{path}, the lock that {artifact.stack} was built from, is gone or was changed",
            f"hpcstack build {artifact.stack}",
            page="push-an-image",
        )
    return lock


def _read_base(lock: Lock, platform: str, bench: Workbench) -> _BaseImage:
    """Return the base of LOCK as its registry has it."""
    digest = lock.platform(platform).digest
    base = Base.model_validate({"image": f"{lock.base.registry}/{lock.base.repository}@{digest}"})
    manifest, config = bench.registry.image_documents(base, platform)
    return _BaseImage(base, manifest, config)


def _write_delta(
    request: PushRequest, base: _BaseImage, lock: Lock, file: BinaryIO, bench: Workbench
) -> CompressedLayer:
    """Write the layer with what the stack adds to FILE, compressed."""
    artifact = request.artifact
    imported = provide_base(lock, artifact.platform, bench)
    # What import has put into the base is in none of its layers.
    image = bench.registry.image(base.base, artifact.platform)
    added = [*list_files_above(image, ""), *list_files_below(image)]
    always = frozenset(member.name for member, _ in added)
    progress = bench.progress
    try:
        with (
            writing_below(cache_of(bench.site).top, "the layer was not written"),
            Squashfs(imported) as below,
            Squashfs(artifact.image) as above,
        ):
            found = find_delta(below, above, always)
            for path in found.skipped[:MOST_NAMED]:
                progress(f"left out, as no layer can have it: /{path.decode('utf-8', 'replace')}")
            return compress_layer(
                write_delta(found, above), file, lambda done: progress.amount("layer", done, 0)
            )
    except Unreadable as error:
        raise StoreError(
            f"{artifact.image}, or its base, is damaged: {error}",
            "hpcstack verify says which",
            page="repair-what-is-published",
        ) from None


@contextmanager
def _make_file(bench: Workbench) -> Iterator[BinaryIO]:
    """Yield a file without a name, beside the caches, which are large. It ends with the block."""
    folder = cache_of(bench.site).top
    with writing_below(folder, "no file for a layer could be made", bench.site.sharing):
        pass  # the folder is there now, and is the group's
    with TemporaryFile(dir=folder, prefix="push-") as file:
        yield file


def _reopen(file: BinaryIO) -> BinaryIO:
    file.seek(0)
    return file


def _provide_base_layers(
    request: PushRequest, base: _BaseImage, registry: PushRegistry, bench: Workbench
) -> int:
    """See to it that the target has the base's layers. Return how many bytes were uploaded."""
    host, url = bench.registry.place(base.base)
    source = url.partition("/v2/")[2] if host == registry.host else ""
    missing = []
    for layer in {one.digest: one for one in base.layers}.values():
        there = registry.has_blob(layer.digest)
        if not there and source:
            there = registry.mount_blob(layer.digest, source)
        if not there:
            missing.append(layer)
    if not missing:
        return 0

    size = sum(layer.size for layer in missing)
    name = f"{base.base.registry}/{base.base.repository}"
    licence = read_licence(base.config)
    what = (
        f"{registry.host} does not have {len(missing)} of {len(base.layers)} layers of {name}, "
        f"{size / 1e6:.0f} MB. {licence}"
    )
    if not request.with_base:
        raise AnswerIsNo(
            what,
            "if its licence allows you to pass them on: --with-base; else push to a registry that "
            "mirrors it",
            page="push-an-image",
        )

    bench.progress(what)
    for layer in missing:
        _copy_layer(layer, base, registry, bench)
    return size


def read_licence(config: dict[str, Any]) -> str:
    """Return a sentence on the licence of the image with CONFIG, as far as it says one itself."""
    labels = (config.get("config") or {}).get("Labels") or {}
    named = str(labels.get("org.opencontainers.image.licenses", ""))[:200]
    if named:
        return f"The base says that its licence is {named}."
    return "The base does not name its licence: its publisher does."


def _copy_layer(
    layer: Descriptor, base: _BaseImage, registry: PushRegistry, bench: Workbench
) -> None:
    """Fetch LAYER from the base's registry, and upload it."""
    short = layer.digest[7:19]
    with _make_file(bench) as file:
        with writing_below(cache_of(bench.site).top, "a layer of the base was not kept"):
            _fetch_layer(layer, base, bench.registry, file)
        registry.upload_blob(
            layer.digest,
            layer.size,
            lambda: _reopen(file),
            lambda done: bench.progress.amount(short, done, layer.size),
        )


def _fetch_layer(layer: Descriptor, base: _BaseImage, registry: Registry, file: BinaryIO) -> None:
    """Fetch LAYER into FILE; where the connection breaks off, go on from there.

    Raise RegistryError where it is not what its digest says.
    """
    for attempt in range(TRIES):
        try:
            for piece in registry.blob(base.base, layer.digest, file.tell()):
                file.write(piece)
            break
        except RegistryError:
            if attempt + 1 == TRIES:
                raise
    file.seek(0)
    digest = hashlib.sha256()
    while piece := file.read(1 << 20):
        digest.update(piece)
    if f"sha256:{digest.hexdigest()}" != layer.digest:
        raise RegistryError(
            f"{base.base.registry} sent bytes that do not match {layer.digest}",
            "try again; if it persists, tell the registry's admin",
        )


def _make_config(
    request: PushRequest, base: _BaseImage, lock: Lock, delta: CompressedLayer
) -> bytes:
    """Return the image's config: the base's, with what the stack says over it."""
    artifact, stack = request.artifact, request.stack
    config = json.loads(json.dumps(base.config))
    run = dict(config.get("config") or {})
    run["Env"] = [f"{name}={value}" for name, value in artifact.environment.items()]
    labels = run.get("Labels") or {}
    run["Labels"] = {**labels, **_read_labels(artifact), **_describe_origin(request, lock)}
    if stack.entrypoint:
        run["Entrypoint"] = [f"{HOME}/compat.sh", *stack.entrypoint]
        run.pop("Cmd", None)

    # The time at which it was built: so the same image has the same digest when it is pushed again.
    made = artifact.image.stat().st_mtime
    created = datetime.fromtimestamp(int(made), timezone.utc).isoformat().replace("+00:00", "Z")
    plain = [*(config.get("rootfs") or {}).get("diff_ids", []), delta.plain_digest]
    config |= {
        "created": created,
        "config": run,
        "rootfs": {"type": "layers", "diff_ids": plain},
    }
    if isinstance(config.get("history"), list):
        row = {"created": created, "created_by": f"hpcstack {__version__}: {artifact.stack}"}
        config["history"] = [*config["history"], row]
    for name in ("id", "parent", "container", "container_config", "docker_version"):
        config.pop(name, None)  # of the machine on which Docker built the base
    return json.dumps(config, sort_keys=True, separators=(",", ":")).encode()


def _read_labels(artifact: Artifact) -> dict[str, str]:
    """Return the labels that the image names itself."""
    text = read_optional(artifact.image, f"{SINGULARITY}/labels.json")
    try:
        found = parse_untrusted_json(text.encode(), MAX_LABELS)
    except ValueError:
        return {}
    return {str(name): str(value) for name, value in found.items()}


def _describe_origin(request: PushRequest, lock: Lock) -> dict[str, str]:
    """Return labels that say what the image is, and of what it was made.

    https://github.com/opencontainers/image-spec/blob/main/annotations.md
    """
    artifact = request.artifact
    base = lock.base
    return {
        "org.opencontainers.image.title": artifact.stack,
        "org.opencontainers.image.version": request.stack.release_version,
        "org.opencontainers.image.description": request.stack.summary,
        "org.opencontainers.image.base.name": f"{base.registry}/{base.repository}:{base.tag}",
        "org.opencontainers.image.base.digest": lock.platform(artifact.platform).digest,
        "org.hpcstack.lock": artifact.lock_sha256,
        "org.hpcstack.squashfs": artifact.sha256,
    }


# -- evidence


def _attach_evidence(
    request: PushRequest, lock: Lock, subject: Descriptor, registry: PushRegistry
) -> dict[str, str]:
    """Attach what is known of the image to SUBJECT. Return {what: digest of its manifest}."""
    files = {"sbom": make_image_sbom(request.artifact), "lock": lock.file_text()}
    if request.reports:
        files["report"] = request.reports[0].model_dump_json(indent=1) + "\n"
    contents = {what: text.encode() for what, text in files.items()}

    attached = {}
    signed = request.key is not None
    for what, content in contents.items():
        kind, name = KINDS[what]
        found = registry.attach(subject, kind, content, name, kind, signed=signed)
        attached[what] = found.digest

    statement = make_provenance(request, lock, subject.digest, contents)
    kind, name = KINDS["provenance"]
    media_type = kind
    if request.key:
        statement = request.key.seal_statement(statement)
        media_type = ENVELOPE
    found = registry.attach(subject, kind, statement, name, media_type, signed=signed)
    attached["provenance"] = found.digest
    if request.key:
        _put_cosign_attestation(statement, request.key, subject, registry)
    return attached


def make_provenance(
    request: PushRequest, lock: Lock, digest: str, contents: dict[str, bytes]
) -> bytes:
    """Return the provenance of the image DIGEST as an in-toto statement (SLSA v1), as JSON.

    CONTENTS are the files that are attached beside it, {what: bytes}: the statement has their
    digests, so that who trusts it can trust them. https://slsa.dev/spec/v1.0/provenance
    """
    artifact, target = request.artifact, request.target
    byproducts = [{"name": "image.sqsh", "digest": {"sha256": artifact.sha256}}]
    byproducts += [
        {"name": KINDS[what][1], "digest": {"sha256": digest_bytes(content)[7:]}}
        for what, content in contents.items()
    ]
    document = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": f"{target.registry}/{target.repository}", "digest": {"sha256": digest[7:]}}
        ],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "stack": artifact.stack,
                    "recipe_sha256": lock.spec_sha256,
                    "platform": artifact.platform,
                },
                "internalParameters": {
                    "engine": artifact.engine,
                    "lock_sha256": artifact.lock_sha256,
                    "stand_in": artifact.stand_in,
                    # Of two statements on one image, the one with the newer report counts.
                    TESTED: request.reports[0].started if request.reports else "",
                },
                "resolvedDependencies": list_dependencies(lock, artifact.platform),
            },
            "runDetails": {
                "builder": {"id": f"urn:hpcstack:{__version__}"},
                "metadata": {"invocationId": artifact.key},
                "byproducts": byproducts,
            },
        },
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def list_dependencies(lock: Lock, platform: str) -> list[dict[str, Any]]:
    """Return what LOCK builds an image of, as SLSA's resource descriptors."""
    base = lock.base
    locked = lock.platform(platform)
    out: list[dict[str, Any]] = [
        {
            "uri": f"oci://{base.registry}/{base.repository}:{base.tag}",
            "digest": {"sha256": locked.digest.removeprefix("sha256:")},
        }
    ]
    out += [
        {"uri": f"pkg:deb/{one.name}@{one.version}", "digest": _split_hash(one.hash)}
        for one in locked.apt or ()
    ]
    out += [
        {"uri": f"pkg:rpm/{one.name}@{one.version}", "digest": _split_hash(one.hash)}
        for one in locked.dnf or ()
    ]
    out += [
        {"uri": f"pkg:pypi/{one.name}@{one.version}", "digest": _split_hash(one.hashes[0])}
        for one in locked.pip or ()
    ]
    out += [
        {"uri": f"pkg:conda/{one.name}@{one.version}", "digest": {"sha256": one.sha256}}
        for one in locked.conda or ()
    ]
    out += [
        {"uri": f"urn:hpcstack:source:{name}", "digest": {"gitCommit": commit}}
        for name, commit in lock.sources.items()
    ]
    return out


def _split_hash(text: str) -> dict[str, str]:
    """Return ALGORITHM:HEX as {algorithm: hex}; {} for an empty text."""
    algorithm, _, value = text.partition(":")
    return {algorithm: value} if value else {}


def _sign(key: PrivateKey, subject: Descriptor, registry: PushRegistry) -> None:
    """Sign SUBJECT as cosign does: by a manifest under a tag beside it."""
    name = f"{registry.target.registry}/{registry.target.repository}"
    statement = key.sign_image(name, subject.digest)
    layer = registry.upload_bytes(statement.payload, STATEMENT)
    annotated = {**layer.as_dict(), "annotations": make_signature_layer(statement)}

    def is_ours(content: bytes, there: dict[str, Any]) -> bool:
        found = list_statements({"layers": [there]})
        return any(
            key.public.has_signed(CosignStatement(content, signature), subject.digest)
            for _, signature in found
        )

    _put_beside(annotated, make_signature_tag(subject.digest), is_ours, registry)


def _put_cosign_attestation(
    envelope: bytes, key: PrivateKey, subject: Descriptor, registry: PushRegistry
) -> None:
    """Put ENVELOPE where `cosign verify-attestation` looks for it."""
    layer = registry.upload_bytes(envelope, ENVELOPE)
    annotations = {"predicateType": PREDICATE, "dev.cosignproject.cosign/signature": ""}
    tag = make_signature_tag(subject.digest).removesuffix(".sig") + ".att"

    def is_ours(content: bytes, _: dict[str, Any]) -> bool:
        return key.public.open_envelope(content) is not None

    _put_beside({**layer.as_dict(), "annotations": annotations}, tag, is_ours, registry)


def _put_beside(
    layer: dict[str, Any],
    tag: str,
    is_ours: Callable[[bytes, dict[str, Any]], bool],
    registry: PushRegistry,
) -> None:
    """Add LAYER to the manifest under TAG, in the form in which cosign writes one.

    Layers that are there stay, but for those of which IS_OURS(content, layer) is true.
    """
    kept = [
        there
        for there, content in registry.list_layers(tag, MAX_BESIDE)
        if content is None or not is_ours(content, there)
    ]
    layers = [*kept, layer]
    plain = [one["digest"] for one in layers]
    config = {
        "architecture": "",
        "os": "",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": plain},
    }
    found = registry.upload_bytes(json.dumps(config, sort_keys=True).encode(), OCI_CONFIG)
    registry.put_manifest(
        {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": found.as_dict(),
            "layers": layers,
        },
        tag,
    )
