"""Pushing to registries that a real one cannot be made to be: busy, misplaced, of the older kind."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from hpcstack.core.errors import RegistryError
from hpcstack.oci import client
from hpcstack.oci.client import Registry
from hpcstack.oci.push import (
    OCI_INDEX,
    OCI_MANIFEST,
    OURS,
    Descriptor,
    PushRegistry,
    _find_address,
    digest_bytes,
    list_referrers,
    make_fallback_tag,
)
from hpcstack.recipe.model import Base
from hpcstack.site.load import Site
from support.push_registry import PushedTo

DATA = b"a layer" * 1000
DIGEST = digest_bytes(DATA)
NAME = "group/mine"


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PushedTo]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setattr(client, "BACK_OFF", 0.01)
    with PushedTo().running() as found:
        yield found


def site_of(there: PushedTo) -> Site:
    values: dict[str, Any] = {"store": "/s", "lock_dir": "/l", "module_root": "/m"}
    values["registries"] = {there.address: {"plain_http": True}}
    return Site.model_validate(values)


def target_of(there: PushedTo) -> Base:
    return Base.model_validate({"image": f"{there.address}/{NAME}:1"})


@pytest.fixture
def registry(there: PushedTo) -> PushRegistry:
    return PushRegistry(site_of(there), target_of(there))


def upload(registry: PushRegistry, data: bytes = DATA) -> bool:
    seen: list[int] = []
    sent = registry.upload_blob(
        digest_bytes(data), len(data), lambda: io.BytesIO(data), seen.append
    )
    assert not sent or seen[-1] == len(data)
    return sent


def test_a_blob_is_sent_once(there: PushedTo, registry: PushRegistry) -> None:
    assert upload(registry)
    assert there.blobs[NAME, DIGEST] == DATA
    assert not upload(registry)
    assert registry.sent == len(DATA)


def test_a_busy_registry_is_waited_for(there: PushedTo, registry: PushRegistry) -> None:
    """The whole blob is sent again: a request that failed may have taken a part of it."""
    there.busy = 2
    assert upload(registry)
    assert there.blobs[NAME, DIGEST] == DATA
    there.busy = 99
    with pytest.raises(RegistryError, match="503"):
        upload(registry, b"another")


def test_an_upload_is_not_sent_to_another_host(there: PushedTo, registry: PushRegistry) -> None:
    there.location_host = "elsewhere.example.org"
    with pytest.raises(RegistryError, match=r"continues the upload at elsewhere\.example\.org"):
        upload(registry)


def test_a_layer_of_another_repository_is_mounted(there: PushedTo, registry: PushRegistry) -> None:
    there.blobs["base/image", DIGEST] = DATA
    assert registry.mount_blob(DIGEST, "base/image")
    assert there.blobs[NAME, DIGEST] == DATA
    assert registry.sent == 0

    # What is not mounted is begun as an upload instead, which is taken back.
    assert not registry.mount_blob(digest_bytes(b"x"), "base/image")
    assert there.asked[-1][0] == "DELETE"


def test_a_token_allows_to_push_here_and_to_read_what_is_mounted(
    there: PushedTo, registry: PushRegistry
) -> None:
    there.wants_token = True
    upload(registry)
    assert there.scopes == [[f"repository:{NAME}:pull,push"]]
    there.blobs["base/image", digest_bytes(b"x")] = b"x"
    assert registry.mount_blob(digest_bytes(b"x"), "base/image")
    assert there.scopes[-1] == [f"repository:{NAME}:pull,push", "repository:base/image:pull"]


def test_a_blob_that_is_kept_elsewhere_is_there(there: PushedTo, registry: PushRegistry) -> None:
    """Registries over an object store send who asks for a blob to it."""
    upload(registry)
    there.keeps_elsewhere = True
    assert not upload(registry)


@pytest.mark.parametrize(
    ("status", "body", "says", "tip"),
    [
        (
            404,
            b'{"errors": [{"message": "no such project"}]}',
            "no such project",
            "create the project",
        ),
        (413, b"<html>", "(413)", "limits the size"),
        (412, b"[]", "(412)", "name another one"),
        (403, b"", "(403)", "docker login"),
        (405, b"", "(405)", "mirrors another one"),
    ],
)
def test_a_refusal_is_about_pushing(
    there: PushedTo, registry: PushRegistry, status: int, body: bytes, says: str, tip: str
) -> None:
    there.refuses = (status, body)
    with pytest.raises(RegistryError) as error:
        upload(registry)
    assert says in error.value.message
    assert tip in error.value.hint


@pytest.mark.parametrize(
    ("location", "own", "same"),
    [
        ("https://r.example.org:443/x", "https://r.example.org/v2", True),
        ("http://R.example.org/x", "https://r.example.org/v2", True),
        ("https://r.example.org:5000/x", "https://r.example.org/v2", False),
        ("https://evil.example.org/x", "https://r.example.org/v2", False),
        ("https://r.example.org:99999999/x", "https://r.example.org/v2", False),
    ],
)
def test_one_address_in_several_spellings(location: str, own: str, same: bool) -> None:
    assert (_find_address(urlsplit(location)) == _find_address(urlsplit(own))) is same


def test_docker_hub_has_another_host() -> None:
    values: dict[str, Any] = {"store": "/s", "lock_dir": "/l", "module_root": "/m"}
    registry = PushRegistry(Site.model_validate(values), Base(image="docker.io/me/x:1"))
    assert registry.url == "https://registry-1.docker.io/v2/me/x"


def test_plain_http_of_a_mirror_is_not_that_of_the_registry(there: PushedTo) -> None:
    values: dict[str, Any] = {"store": "/s", "lock_dir": "/l", "module_root": "/m"}
    entry = {"mirror": "localhost:5000", "plain_http": True}
    site = Site.model_validate({**values, "registries": {"r.example.org": entry}})
    assert PushRegistry(site, Base(image="r.example.org/x:1")).url.startswith(
        "https://r.example.org/"
    )


@pytest.mark.parametrize("status", [400, 404, 405, 406, 501])
def test_a_registry_without_the_api_may_say_so_in_many_ways(
    there: PushedTo, registry: PushRegistry, status: int
) -> None:
    there.unknown_api = status
    subject = registry.put_manifest(manifest_of("image"), "1")
    registry.attach(subject, "application/x.sbom", b"x", "sbom.json", "text/plain")
    found = list_referrers(Registry(site_of(there)), target_of(there), subject.digest)
    assert [one["artifactType"] for one in found] == ["application/x.sbom"]


def test_what_others_have_attached_stays(there: PushedTo, registry: PushRegistry) -> None:
    """Also what was signed beside what is not: who checks by a key finds it still."""
    subject = registry.put_manifest(manifest_of("image"), "1")
    tag = make_fallback_tag(subject.digest)
    foreign = {"mediaType": OCI_MANIFEST, "digest": digest_bytes(b"scan"), "size": 1,
               "artifactType": "application/x.sbom", "annotations": {"by": "a scanner"}}  # fmt: skip
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [foreign]}
    registry.put_manifest(index, tag)

    for content, signed in ((b"1", True), (b"2", True), (b"3", False), (b"4", False)):
        registry.attach(subject, "application/x.sbom", content, "x", "text/plain", signed=signed)
    found = there.manifest(NAME, tag)["manifests"]
    assert found[0] == foreign
    assert [one["annotations"][OURS] for one in found[1:]] == ["signed", "unsigned"]


@pytest.mark.parametrize("api", [True, False])
def test_what_is_attached_is_found_again(
    there: PushedTo, registry: PushRegistry, api: bool
) -> None:
    there.has_referrers_api = api
    subject = registry.put_manifest(manifest_of("image"), "1")
    for content in (b"first", b"second"):
        last = registry.attach(subject, "application/x.sbom", content, "sbom.json", "text/plain")
    other = registry.attach(subject, "application/x.lock", b"lock", "lock.json", "text/plain")

    reader = Registry(site_of(there))
    found = list_referrers(reader, target_of(there), subject.digest)
    kinds = {one["digest"]: one["artifactType"] for one in found}
    assert kinds[last.digest] == "application/x.sbom", found
    assert kinds[other.digest] == "application/x.lock"
    # The index under the fallback tag is ours to write: it names the newest of each kind.
    assert len(found) == (3 if api else 2)
    assert ((NAME, make_fallback_tag(subject.digest)) in there.manifests) is not api

    document = there.manifest(NAME, last.digest)
    assert document["subject"]["digest"] == subject.digest
    (layer,) = document["layers"]
    assert there.blobs[NAME, layer["digest"]] == b"second"
    assert layer["annotations"] == {"org.opencontainers.image.title": "sbom.json"}


def test_nothing_refers_to_what_nobody_attached_to(there: PushedTo) -> None:
    for api in (True, False):
        there.has_referrers_api = api
        assert list_referrers(Registry(site_of(there)), target_of(there), DIGEST) == []


def manifest_of(title: str) -> dict[str, Any]:
    return {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": Descriptor("x", DIGEST, 1).as_dict(),
        "layers": [],
        "annotations": {"org.opencontainers.image.title": title},
    }


def test_a_registry_that_changes_manifests_is_told(there: PushedTo, registry: PushRegistry) -> None:
    there.stored_as = digest_bytes(b"other")
    with pytest.raises(RegistryError, match="not as sha256:"):
        registry.put_manifest(manifest_of("x"), "1")


def test_a_mirror_is_for_reading(there: PushedTo) -> None:
    site = site_of(there)
    entry = site.registries[there.address].model_copy(update={"mirror": "mirror.example.org/m"})
    mirrored = site.model_copy(update={"registries": {there.address: entry}})
    registry = PushRegistry(mirrored, target_of(there))
    assert registry.place(target_of(there)) == (there.address, f"https://{there.address}/v2/{NAME}")
