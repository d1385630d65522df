"""What a push says of an image: its config, its provenance, and what one tag means for two platforms."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from hpcstack.core.errors import AnswerIsNo, InputError
from hpcstack.lock.model import LockedApt, LockedPip
from hpcstack.oci import client
from hpcstack.oci.client import Registry
from hpcstack.oci.push import OCI_INDEX, OCI_MANIFEST, Descriptor, PushRegistry, digest_bytes
from hpcstack.oci.signed import PrivateKey, make_signed_form, read_key, read_private_key
from hpcstack.publish.pull_image import (
    _choose_provenance,
    _find_named,
    list_byproducts,
    parse_provenance,
)
from hpcstack.publish.push_image import (
    PushRequest,
    _name_target,
    _put_cosign_attestation,
    _sign,
    _tag,
    list_dependencies,
    make_provenance,
    read_licence,
)
from hpcstack.recipe.model import Base
from hpcstack.site.load import Site
from support.locks import example_lock
from support.modules import Place
from support.push_registry import PushedTo

PLATFORM = "linux/amd64"
TARGET = Base(image="registry.example.org/hpc/pytorch:24.11")
DIGEST = digest_bytes(b"manifest")


@pytest.fixture
def request_(tmp_path: Path) -> PushRequest:
    place = Place(tmp_path)
    stack = place.stack()
    return PushRequest(stack, place.artifact(stack), TARGET)


def test_provenance_names_all_it_was_made_of(request_: PushRequest) -> None:
    lock = example_lock(request_.stack)
    contents = {"sbom": b"{}", "lock": b"lock"}
    found = json.loads(make_provenance(request_, lock, DIGEST, contents))
    assert found["_type"] == "https://in-toto.io/Statement/v1"
    (subject,) = found["subject"]
    assert subject == {"name": "registry.example.org/hpc/pytorch",
                       "digest": {"sha256": DIGEST.removeprefix("sha256:")}}  # fmt: skip
    byproducts = found["predicate"]["runDetails"]["byproducts"]
    named = {one["name"]: one["digest"]["sha256"] for one in byproducts}
    assert named["sbom.json"] == digest_bytes(b"{}").removeprefix("sha256:")
    assert named["image.sqsh"] == request_.artifact.sha256

    dependencies = found["predicate"]["buildDefinition"]["resolvedDependencies"]
    base = lock.platform(PLATFORM).digest.removeprefix("sha256:")
    assert dependencies[0]["digest"] == {"sha256": base}
    assert all(one["digest"] or one["uri"].startswith("pkg:deb/") for one in dependencies)


def test_each_kind_of_package_is_a_dependency(request_: PushRequest) -> None:
    lock = example_lock(request_.stack)
    platform = lock.platform(PLATFORM).model_copy(
        update={
            "apt": (LockedApt(name="tree", version="2.1", hash="sha256:aa"), LockedApt(name="x", version="1")),
            "pip": (LockedPip(name="six", version="1.17.0", hashes=("sha256:bb",)),),
        }
    )  # fmt: skip
    base = lock.base.model_copy(update={"platforms": {PLATFORM: platform}})
    found = list_dependencies(lock.model_copy(update={"base": base}), PLATFORM)
    uris = {one["uri"]: one["digest"] for one in found}
    assert uris["pkg:deb/tree@2.1"] == {"sha256": "aa"}
    assert uris["pkg:deb/x@1"] == {}
    assert uris["pkg:pypi/six@1.17.0"] == {"sha256": "bb"}


@pytest.mark.parametrize("kind", ["ecdsa", "rsa", "ed25519", "openssh", "encrypted"])
def test_what_a_key_signs_is_verified_by_its_public_half(tmp_path: Path, kind: str) -> None:
    private: Any = ec.generate_private_key(ec.SECP256R1())
    if kind == "rsa":
        private = rsa.generate_private_key(65537, 2048)
    if kind in ("ed25519", "openssh"):
        private = ed25519.Ed25519PrivateKey.generate()
    form = PrivateFormat.OpenSSH if kind == "openssh" else PrivateFormat.PKCS8
    locked = BestAvailableEncryption(b"secret") if kind == "encrypted" else NoEncryption()
    (tmp_path / "key").write_bytes(private.private_bytes(Encoding.PEM, form, locked))
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "key.pub").write_bytes(public)

    asked = []

    def ask() -> str:
        asked.append("asked")
        return "secret"

    key = read_private_key(str(tmp_path / "key"), ask)
    assert bool(asked) == (kind == "encrypted")
    trusted = read_key(str(tmp_path / "key.pub"))
    statement = key.sign_image("registry.example.org/x", DIGEST)
    assert trusted.has_signed(statement, DIGEST)
    assert not trusted.has_signed(statement, digest_bytes(b"other"))

    envelope = key.seal_statement(b'{"a": 1}')
    assert trusted.open_envelope(envelope) == b'{"a": 1}'
    for changed in (envelope.replace(b"eyJh", b"eyJi"), b"{}", b"[]", b"not JSON"):
        assert trusted.open_envelope(changed) is None


def test_dsse_signs_what_the_specification_says() -> None:
    """https://github.com/secure-systems-lab/dsse/blob/master/protocol.md"""
    assert make_signed_form(b"hello") == b"DSSEv1 28 application/vnd.in-toto+json 5 hello"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nothing", "is not a private key that can be used"),
        ("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\nAA==\n-----END ENCRYPTED SIGSTORE PRIVATE KEY-----\n",
         "is not a private key that can be used"),
        (None, "cannot be read"),
    ],
)  # fmt: skip
def test_what_is_no_key_is_refused(tmp_path: Path, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / "key").write_text(text)
    with pytest.raises(InputError, match=says) as error:
        read_private_key(str(tmp_path / "key"), lambda: "")
    if text and "SIGSTORE" in text:
        assert "cosign's own format is not read" in error.value.hint


def make_statement(**changes: Any) -> dict[str, Any]:
    return {
        "subject": [{"digest": {"sha256": DIGEST.removeprefix("sha256:")}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "runDetails": {
                "byproducts": [
                    {"name": "sbom.json", "digest": {"sha256": digest_bytes(b"{}")[7:]}},
                ]
            }
        },
        **changes,
    }


@pytest.mark.parametrize(
    ("statement", "counts"),
    [
        (make_statement(), True),
        (make_statement(subject=[{"digest": {"sha256": "0" * 64}}]), False),
        (make_statement(predicateType="https://example.org"), False),
        (make_statement(predicate={}), False),
        (make_statement(predicate={"runDetails": {"byproducts": [{"name": "x"}]}}), False),
        (
            make_statement(predicate={"runDetails": {"byproducts": []}, "buildDefinition": []}),
            False,
        ),
        (make_statement(subject=None), False),
        ({}, False),
    ],
)
def test_what_is_no_provenance_of_the_image_does_not_count(
    statement: dict[str, Any], counts: bool
) -> None:
    assert (parse_provenance(json.dumps(statement).encode(), DIGEST) is not None) is counts
    assert parse_provenance(b"nonsense", DIGEST) is None


def test_the_newest_statement_counts_and_the_files_that_it_names() -> None:
    """Several pushes, and others, may have attached files of the same kinds, in any order."""

    def statement(tested: str, sbom: bytes) -> bytes:
        found = make_statement()
        found["predicate"]["buildDefinition"] = {"internalParameters": {"tested_on": tested}}
        row = {"name": "sbom.json", "digest": {"sha256": digest_bytes(sbom)[7:]}}
        found["predicate"]["runDetails"]["byproducts"] = [row]
        return json.dumps(found).encode()

    provenances = [statement("2026-11-02", b"new"), b"foreign", statement("", b"old")]
    for found in (provenances, provenances[::-1]):
        chosen = _choose_provenance(found, DIGEST, TARGET, None)
        attached = {"sbom": [b"a scanner's", b"old", b"new"]}
        assert _find_named("sbom", attached, list_byproducts(chosen), TARGET) == b"new"
    with pytest.raises(AnswerIsNo, match="no sbom that is attached"):
        _find_named("sbom", {"sbom": [b"x"]}, list_byproducts(chosen), TARGET)
    with pytest.raises(AnswerIsNo, match="has no provenance attached"):
        _choose_provenance([b"foreign"], DIGEST, TARGET, None)


@pytest.mark.parametrize(
    "text", ["mine/pytorch", "pytorch", f"r.example.org/x@{DIGEST}", "r.example.org"]
)
def test_where_to_push_must_be_said(request_: PushRequest, text: str) -> None:
    """`mine/pytorch` is Docker Hub's for other programs: an image must not become public by that."""
    with pytest.raises(InputError, match="does not say where to push to"):
        _name_target(text, request_.stack)
    assert _name_target("r.example.org:5000/x", request_.stack).tag == "24.11"
    assert _name_target("localhost/x:y", request_.stack).image == "localhost/x:y"


def test_a_licence_is_said_as_far_as_it_is_known() -> None:
    label = {"config": {"Labels": {"org.opencontainers.image.licenses": "Apache-2.0"}}}
    assert "Apache-2.0" in read_licence(label)
    for nothing in ({}, {"config": None}, {"config": {"Labels": None}}):
        assert "does not name its licence" in read_licence(nothing)


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PushedTo]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setattr(client, "BACK_OFF", 0.01)
    with PushedTo().running() as found:
        yield found


def test_a_tag_means_the_images_of_both_platforms(there: PushedTo, request_: PushRequest) -> None:
    values: dict[str, Any] = {"store": "/s", "lock_dir": "/l", "module_root": "/m"}
    site = Site.model_validate({**values, "registries": {there.address: {"plain_http": True}}})
    target = Base(image=f"{there.address}/x:1")
    registry = PushRegistry(site, target)
    key = PrivateKey(ec.generate_private_key(ec.SECP256R1()))

    def push_for(architecture: str, note: str = "") -> str:
        config = json.dumps({"os": "linux", "architecture": architecture, "note": note}).encode()
        found = registry.upload_bytes(config, "application/vnd.oci.image.config.v1+json")
        subject = registry.put_manifest({
            "schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": found.as_dict(), "layers": [],
        })  # fmt: skip
        artifact = replace(request_.artifact, platform=f"linux/{architecture}")
        asked = replace(request_, artifact=artifact, target=target, key=key)
        _tag(subject, asked, registry)
        return subject.digest

    first = push_for("amd64")
    assert digest_bytes(there.manifests["x", "1"][1]) == first, "one platform: the image itself"
    second = push_for("amd64", "again")
    assert digest_bytes(there.manifests["x", "1"][1]) == second

    other = push_for("arm64")
    assert there.manifests["x", "1"][0] == OCI_INDEX
    third = push_for("amd64", "and again")
    index = there.manifest("x", "1")
    found = {one["platform"]["architecture"]: one["digest"] for one in index["manifests"]}
    assert found == {"amd64": third, "arm64": other}

    digest = digest_bytes(there.manifests["x", "1"][1])
    statements = Registry(site).statements(target, digest)
    assert any(key.public.has_signed(one, digest) for one in statements), "the index is signed"


def test_the_signatures_of_others_stay(there: PushedTo) -> None:
    values: dict[str, Any] = {"store": "/s", "lock_dir": "/l", "module_root": "/m"}
    site = Site.model_validate({**values, "registries": {there.address: {"plain_http": True}}})
    target = Base(image=f"{there.address}/x:1")
    registry = PushRegistry(site, target)
    subject = Descriptor(OCI_MANIFEST, DIGEST, 1)
    keys = [PrivateKey(ec.generate_private_key(ec.SECP256R1())) for _ in range(2)]
    for key in (*keys, *keys):
        _sign(key, subject, registry)
        envelope = key.seal_statement(b"{}")
        _put_cosign_attestation(envelope, key, subject, registry)

    found = Registry(site).statements(target, DIGEST)
    assert len(found) == 2, "each key's own once"
    assert all(any(key.public.has_signed(one, DIGEST) for one in found) for key in keys)
    assert len(there.manifest("x", f"{DIGEST.replace(':', '-')}.att")["layers"]) == 2
