"""ci/ngc-contact, against the testbed's own registry; and what it wrote, played back as a registry
for the client.
"""

from __future__ import annotations

import gzip
import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import make_site
from hpcstack.oci.client import Registry
from hpcstack.recipe.model import Base
from support.contact import play, read_contact
from support.ngc_registry import AUTHN, REGISTRY, TESTBED_HOSTS, NgcFront, resolve_here
from support.testbed import REPO, Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.builds, pytest.mark.registry, pytest.mark.squashfs]
IMAGE = "hpcstack-tests/ngc-inside:24.11-py3"


@pytest.fixture(scope="module")
def front(testbed: Testbed, ngc_inside: str) -> Iterator[NgcFront]:
    found = NgcFront(
        testbed.folder / "etc/ngc", hosts=dict(TESTBED_HOSTS), upstream=testbed.registry,
        storage=testbed.folder / "state/registry", token_lives_s=5,
    )  # fmt: skip
    with found.running():
        yield found


@pytest.fixture(scope="module")
def contact(
    testbed: Testbed, front: NgcFront, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("contact") / "contact.json.gz"
    ca = str(testbed.folder / "etc/ngc/ca.pem")
    argv = [str(REPO / "ci/ngc-contact"), IMAGE, "hpcstack-tests/none:1", "--registry", front.address(REGISTRY),
            "--ca", ca, "--stale-after", "6", "--output", str(path)]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text = gzip.decompress(path.read_bytes()).decode()
    assert front.tokens and not any(token in text for token in front.tokens), (
        "a token was written down"
    )
    assert "signature=" not in text.replace("signature=REDACTED", ""), (
        "a URL's signature was written down"
    )
    return read_contact(path)


def test_the_registrys_own_words_are_written_down(contact: dict[str, Any], front: NgcFront) -> None:
    exchanges = contact["exchanges"]
    assert [exchanges[name]["status"] for name in ("ping", "cold", "token", "manifest", "head", "tags")] == [
        401, 401, 200, 200, 200, 200,
    ]  # fmt: skip
    assert "/proxy_auth?scope=repository:" in exchanges["cold"]["head"]
    assert exchanges["stale"]["status"] == 401
    assert front.address(AUTHN) in exchanges["stale"]["head"]
    assert exchanges["token"]["token"]["lives_s"] == 5
    image = contact["images"][IMAGE]
    assert image["blob"]["status"] == 307
    assert "Location: https://layers." in image["blob"]["head"]
    assert contact["images"]["hpcstack-tests/none:1"]["missing"]["status"] == 404


def test_what_decides_in_an_image_is_written_down(contact: dict[str, Any]) -> None:
    image = contact["images"][IMAGE]
    assert image["texts"]["etc/pip/constraint.txt"] == "packaging==23.2\n"
    assert "shinit_v2" in image["texts"]["etc/bash.bashrc"]
    assert image["names"]["usr/local/cuda-12.6/compat/lib"] == "lib.real"
    assert image["packages"]["count"] > 50
    assert "CUDA_DRIVER_VERSION=560.35.05" in image["config"]["config"]["Env"]
    assert not [layer for layer in image["layers"] if "left_out" in layer]


def test_it_is_played_back_as_a_registry(
    contact: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ngc").mkdir()
    played = play(contact, tmp_path / "ngc")
    played.token_lives_s = played.token_says_s = (
        600  # they are made old below: no race with a clock
    )
    with played.running():
        monkeypatch.setattr(socket, "getaddrinfo", resolve_here(played))
        mirror = {"nvcr.io": {"mirror": played.address(REGISTRY)}}
        registry = Registry(
            make_site(tmp_path, registries=mirror, build={"ca_bundle": str(played.ca)})
        )
        base = Base(image=f"nvcr.io/{IMAGE}")
        recorded = contact["images"][IMAGE]["config"]["config"]["Env"]
        environment = dict(entry.split("=", 1) for entry in recorded)
        assert registry.facts(base)["CUDA"] == environment["CUDA_VERSION"]
        for token, (repository, _) in played.tokens.items():
            played.tokens[token] = (repository, 0.0)
        found = registry.image(base, "linux/amd64")
        (layer,) = found.layers
        assert b"".join(registry.blob(base, layer.digest, 0))[:2] == b"\x1f\x8b"
        assert played.stale > 0
    assert json.dumps(contact).count("REDACTED") > 0
