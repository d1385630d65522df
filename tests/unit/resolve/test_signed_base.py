"""NVIDIA's signature of a base: looked at when it is locked, and required where the site says so."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcstack.build.workbench import Workbench
from hpcstack.core.errors import InputError
from hpcstack.core.process import Runner
from hpcstack.core.progress import Progress
from hpcstack.lock.model import Lock
from hpcstack.oci import client
from hpcstack.oci.client import Registry
from hpcstack.oci.signed import read_key
from hpcstack.recipe.model import Stack
from hpcstack.resolve.base import resolve_base
from hpcstack.resolve.signed_base import record_signature, refuse_unsigned
from hpcstack.site.load import Site, load_site
from support.ngc_registry import REGISTRY, NgcRegistry, resolve_here

REPOSITORY = "nvidia/pytorch"
STACK = Stack.model_validate({
    "apiVersion": "hpcstack/v1", "name": "demo", "version": "1", "summary": "s", "base": {"image": f"nvcr.io/{REPOSITORY}:24.11-py3"},
})  # fmt: skip
KINDS = {
    "ecdsa": "-algorithm EC -pkeyopt ec_paramgen_curve:prime256v1",
    "rsa": "-algorithm RSA -pkeyopt rsa_keygen_bits:2048",
}


def make_key(folder: Path, name: str, kind: str = "ecdsa") -> Path:
    """A private key; its public half is beside it, with .pub."""
    key = folder / name
    subprocess.run(
        ["openssl", "genpkey", *KINDS[kind].split(), "-out", str(key)],
        check=True,
        capture_output=True,
    )
    subprocess.run(
        ["openssl", "pkey", "-in", str(key), "-pubout", "-out", f"{key}.pub"], check=True
    )
    return key


@pytest.fixture
def ngc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NgcRegistry]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setattr(client, "BACK_OFF", 0.01)
    (tmp_path / "ngc").mkdir()
    found = NgcRegistry(tmp_path / "ngc")
    with found.running():
        monkeypatch.setattr(socket, "getaddrinfo", resolve_here(found))
        yield found


def site_with(tmp_path: Path, ngc: NgcRegistry, key: Path | str, *, required: bool = False) -> Site:
    """As a file says it: all of what `load` makes of a site."""
    entry = {"mirror": ngc.address(REGISTRY), "signature_key": str(key)}
    said = {
        "apiVersion": "hpcstack/site/v1", "name": "signed", "store": str(tmp_path / "store"),
        "lock_dir": str(tmp_path / "locks"), "module_root": str(tmp_path / "modules"), "registries": {"nvcr.io": entry},
        "build": {"ca_bundle": str(ngc.ca)}, "policy": {"require_signed_base": required},
    }  # fmt: skip
    (tmp_path / "site.yaml").write_text(json.dumps(said))
    return load_site(str(tmp_path / "site.yaml")).site


class Said(Progress):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def __call__(self, sentence: str) -> None:
        self.sentences.append(sentence)


def lock(site: Site, said: Progress | None = None) -> Lock:
    bench = Workbench(site, Registry(site), Runner(), said or Progress())
    return record_signature(resolve_base(STACK, bench.registry), STACK.base, bench)


@pytest.mark.parametrize("kind", KINDS)
def test_a_signed_base_is_recorded(tmp_path: Path, ngc: NgcRegistry, kind: str) -> None:
    key = make_key(tmp_path, "nvidia", kind)
    digest = ngc.add_image(REPOSITORY, "24.11-py3", [])
    ngc.sign(REPOSITORY, digest, make_key(tmp_path, "somebody"))  # others may sign it, too
    site = site_with(tmp_path, ngc, f"{key}.pub", required=True)
    with pytest.raises(
        InputError, match=r"has signatures, and none of them is of the key in .*nvidia\.pub"
    ):
        lock(site)
    ngc.sign(REPOSITORY, digest, key)
    found = lock(site)
    assert found.base.signed_by == read_key(f"{key}.pub").fingerprint
    refuse_unsigned(found, site)
    with pytest.raises(InputError, match="does not say that its base is signed"):
        refuse_unsigned(found, site_with(tmp_path, ngc, f"{tmp_path}/somebody.pub", required=True))


def test_a_signature_of_another_image_does_not_count(tmp_path: Path, ngc: NgcRegistry) -> None:
    key = make_key(tmp_path, "nvidia")
    digest = ngc.add_image(REPOSITORY, "24.11-py3", [])
    ngc.sign(REPOSITORY, digest, key, about=f"sha256:{'1' * 64}")
    with pytest.raises(InputError, match="none of them is of the key") as caught:
        lock(site_with(tmp_path, ngc, f"{key}.pub"))
    assert "somebody has changed it" in caught.value.hint
    assert "registries.nvcr.io.signature_key" in caught.value.hint


def test_a_platform_that_is_signed_by_itself_counts(tmp_path: Path, ngc: NgcRegistry) -> None:
    key = make_key(tmp_path, "nvidia")
    ngc.add_image(REPOSITORY, "24.11-py3", [])
    site = site_with(tmp_path, ngc, f"{key}.pub", required=True)
    platform = resolve_base(STACK, Registry(site)).base.platforms["linux/amd64"].digest
    ngc.sign(REPOSITORY, platform, key)
    assert lock(site).base.signed_by


def test_without_a_signature_it_is_said_or_refused(tmp_path: Path, ngc: NgcRegistry) -> None:
    key = make_key(tmp_path, "nvidia")
    ngc.add_image(REPOSITORY, "24.11-py3", [])
    said = Said()
    found = lock(site_with(tmp_path, ngc, f"{key}.pub"), said)
    assert found.base.signed_by is None
    assert any("has no signature" in line for line in said.sentences)
    assert "signed_by" not in found.text(), "a lock is the same as before"
    required = site_with(tmp_path, ngc, f"{key}.pub", required=True)
    with pytest.raises(InputError, match="has no signature"):
        lock(required)
    with pytest.raises(InputError, match="hpcstack lock demo-1|does not say"):
        refuse_unsigned(found, required)
    keyless = site_with(tmp_path, ngc, "", required=True)
    for refused in (lambda: refuse_unsigned(found, keyless), lambda: lock(keyless)):
        with pytest.raises(InputError, match=r"names no key for nvcr\.io"):
            refused()


@pytest.mark.parametrize(
    "text", ["", "no key", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"]
)
def test_what_is_no_key_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "key").write_text(text)
    with pytest.raises(InputError, match="is not a public key in PEM"):
        read_key(str(tmp_path / "key"))
    with pytest.raises(InputError, match="cannot be read"):
        read_key(str(tmp_path / "none"))
