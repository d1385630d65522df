"""The registry client and a stand-in that behaves as nvcr.io does: what NVIDIA's own made fail (R1
to R3, P9).
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import socket
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from conftest import make_site
from hpcstack.core.errors import InputError, LoginRefused, RegistryError
from hpcstack.diagnose.run import look_at_registries
from hpcstack.oci import client
from hpcstack.oci.client import Registry
from hpcstack.recipe.model import Base
from hpcstack.site.load import Site
from support.ngc_registry import (
    AUTHN,
    LAYERS,
    REGISTRY,
    NgcRegistry,
    make_certificates,
    resolve_here,
)

REPOSITORY = "nvidia/pytorch"


def layer(name: str, size: int = 2000) -> bytes:
    """A gzipped tar of one file that does not compress."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = size
        tar.addfile(entry, io.BytesIO(bytes(i * 7919 % 251 for i in range(size))))
    return gzip.compress(out.getvalue(), mtime=0)


@pytest.fixture
def ngc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NgcRegistry]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    for name in ("XDG_CONFIG_HOME", "ENROOT_CONFIG_PATH", "REGISTRY_AUTH_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(client, "BACK_OFF", 0.01)
    (tmp_path / "ngc").mkdir()
    found = NgcRegistry(tmp_path / "ngc")
    found.add_image(REPOSITORY, "24.11-py3", [layer("a"), layer("b")])
    with found.running():
        monkeypatch.setattr(socket, "getaddrinfo", resolve_here(found))
        yield found


@pytest.fixture
def site(ngc: NgcRegistry, tmp_path: Path) -> Site:
    mirror = {"nvcr.io": {"mirror": ngc.address(REGISTRY)}}
    return make_site(tmp_path, registries=mirror, build={"ca_bundle": str(ngc.ca)})


def base(tag: str = "24.11-py3", repository: str = REPOSITORY) -> Base:
    return Base(image=f"nvcr.io/{repository}:{tag}")


def log_in(tmp_path: Path, ngc: NgcRegistry, key: str) -> Path:
    """A login in docker's config.json."""
    path = tmp_path / "docker/config.json"
    path.parent.mkdir(exist_ok=True)
    auth = base64.b64encode(f"$oauthtoken:{key}".encode()).decode()
    path.write_text(json.dumps({"auths": {ngc.address(REGISTRY): {"auth": auth}}}))
    return path


def fetch(registry: Registry, image: Base) -> list[bytes]:
    """All layers of IMAGE, as they come."""
    found = registry.image(image, "linux/amd64")
    return [b"".join(registry.blob(image, one.digest, 0)) for one in found.layers]


def asked_of(ngc: NgcRegistry, host: str) -> list[str]:
    return [what for name, what, _ in ngc.asked if name == host]


def test_an_image_comes_by_the_hosts_of_a_pull(ngc: NgcRegistry, site: Site) -> None:
    assert fetch(Registry(site), base()) == [layer("a"), layer("b")]
    assert len(asked_of(ngc, LAYERS)) == 3  # the config and two layers
    assert len([what for what in asked_of(ngc, REGISTRY) if "proxy_auth" in what]) == 1
    assert not [shown for host, _, shown in ngc.asked if host == LAYERS and shown], (
        "the token went to another host"
    )
    assert Registry(site).look_up(base()).manifests.keys() == {"linux/amd64"}


def test_r1_a_token_that_has_run_out_is_renewed(ngc: NgcRegistry, site: Site) -> None:
    """Its 401 names a server that refuses everybody: an import of more than ten minutes ended so."""
    registry = Registry(site)
    registry.look_up(base())
    for token, (repository, _) in ngc.tokens.items():
        ngc.tokens[token] = (
            repository,
            0.0,
        )  # the server's clock is ahead, or somebody has revoked it
    assert fetch(registry, base()) == [layer("a"), layer("b")]
    assert asked_of(ngc, AUTHN) == []


def test_r1_a_token_is_renewed_before_it_runs_out(ngc: NgcRegistry, site: Site) -> None:
    ngc.token_lives_s = 1
    registry = Registry(site)
    registry.look_up(base())
    time.sleep(1.0)
    ngc.asked.clear()
    registry.look_up(base())
    stale = [
        shown
        for host, _, shown in ngc.asked
        if host == REGISTRY and shown and ngc.tokens[shown[7:]][1] < time.time() - 1
    ]
    assert stale == []
    assert asked_of(ngc, AUTHN) == []


def test_r1_many_stacks_outlive_many_tokens(ngc: NgcRegistry, site: Site) -> None:
    registry = Registry(site)
    for month in range(1, 9):
        ngc.add_image(REPOSITORY, f"25.{month:02}-py3", [layer(f"{month}")])
        assert fetch(registry, base(f"25.{month:02}-py3")) == [layer(f"{month}")]
        for token, (repository, _) in ngc.tokens.items():
            ngc.tokens[token] = (
                repository,
                0.0,
            )  # by no clock of the test's: a busy machine has its own
    assert ngc.stale == 7
    assert asked_of(ngc, AUTHN) == []


def test_r2_the_host_that_cannot_be_reached_is_named(ngc: NgcRegistry, site: Site) -> None:
    ngc.layers_down = True
    with pytest.raises(RegistryError) as caught:
        Registry(site, tries=1).look_up(base())
    assert caught.value.message.startswith(
        f"{ngc.address(LAYERS)}, to which {ngc.address(REGISTRY)} redirects for"
    )
    assert f"let this machine reach {ngc.address(LAYERS)}" in caught.value.hint


def test_r2_a_cut_is_of_the_host_that_cuts(ngc: NgcRegistry, site: Site) -> None:
    registry = Registry(site, tries=1)
    found = registry.image(base(), "linux/amd64")
    ngc.cut_after = 100
    with pytest.raises(RegistryError, match=LAYERS):
        b"".join(registry.blob(base(), found.layers[0].digest, 0))


def test_r3_a_bad_key_does_not_keep_a_public_image_away(
    ngc: NgcRegistry, site: Site, tmp_path: Path
) -> None:
    """It is named, once, with the file that has it."""
    path = log_in(tmp_path, ngc, "expired")
    said: list[str] = []
    registry = Registry(site, warn=said.append)
    assert fetch(registry, base()) == [layer("a"), layer("b")]
    assert said == [
        (
            f"{ngc.address(REGISTRY)} refuses the login in {path}: requesting {base().image} "
            f"without a login"
        )
    ]


def test_r3_a_bad_key_on_a_private_image_names_its_file(
    ngc: NgcRegistry, site: Site, tmp_path: Path
) -> None:
    ngc.add_image("org/private", "1", [layer("p")])
    ngc.private.add("org/private")
    path = log_in(tmp_path, ngc, "expired")
    with pytest.raises(LoginRefused) as caught:
        Registry(site).look_up(base("1", "org/private"))
    assert f"refuses the login in {path}" in caught.value.message
    assert "expired" in caught.value.hint
    assert caught.value.page == "mirror-a-registry"


def test_a_key_opens_a_private_image(ngc: NgcRegistry, site: Site, tmp_path: Path) -> None:
    ngc.add_image("org/private", "1", [layer("p")])
    ngc.private.add("org/private")
    ngc.keys["good"] = {"org/private"}
    with pytest.raises(LoginRefused, match="refuses") as caught:
        Registry(site).look_up(base("1", "org/private"))
    assert "docker login -u '$oauthtoken'" in caught.value.hint
    log_in(tmp_path, ngc, "good")
    assert fetch(Registry(site), base("1", "org/private")) == [layer("p")]


def test_r3_terms_that_nobody_has_accepted(ngc: NgcRegistry, site: Site, tmp_path: Path) -> None:
    ngc.terms.add(REPOSITORY)
    ngc.keys["good"] = set()
    log_in(tmp_path, ngc, "good")
    with pytest.raises(RegistryError, match="403") as caught:
        Registry(site).look_up(base())
    assert "accept its terms" in caught.value.hint
    assert "org and team" in caught.value.hint


@pytest.mark.parametrize(
    "place", ["run/containers/auth.json", ".config/containers/auth.json", "REGISTRY_AUTH_FILE"]
)
def test_p9_podmans_login(
    ngc: NgcRegistry, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    ngc.add_image("org/private", "1", [layer("p")])
    ngc.private.add("org/private")
    ngc.keys["good"] = {"org/private"}
    auth = base64.b64encode(b"$oauthtoken:good").decode()
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"auths": {ngc.address(REGISTRY): {"auth": auth}}}))
    if place.isupper():
        monkeypatch.setenv(place, str(path))
    assert fetch(Registry(site), base("1", "org/private")) == [layer("p")]


@pytest.mark.parametrize("path", ["hub/..", "hub/../other", "hub/./x", ".."])
def test_n16_what_is_sent_is_what_was_made(ngc: NgcRegistry, tmp_path: Path, path: str) -> None:
    """urllib3 folds `..` in a URL: nothing with one is sent."""
    mirror = {"nvcr.io": {"mirror": f"{ngc.address(REGISTRY)}/{path}"}}
    with pytest.raises((InputError, ValidationError)):
        Registry(make_site(tmp_path, registries=mirror)).look_up(base())
    assert ngc.asked == []


def test_a_registry_that_is_busy_at_first(ngc: NgcRegistry, site: Site) -> None:
    ngc.busy = 3
    assert fetch(Registry(site), base()) == [layer("a"), layer("b")]


def test_tags_come_in_pages_with_signatures_among_them(ngc: NgcRegistry, site: Site) -> None:
    for number in range(120):
        ngc.tags[REPOSITORY].append(f"23.{number:03}-py3")
    tags = Registry(site).tags(base())
    assert tags[0] == "24.11-py3"
    assert tags[1].endswith(".sig")
    assert len(tags) == 122


def test_p9_an_identity_token(ngc: NgcRegistry, site: Site, tmp_path: Path) -> None:
    """What docker's helpers and podman keep for registries that give one at login."""
    ngc.add_image("org/private", "1", [layer("p")])
    ngc.private.add("org/private")
    ngc.keys["refreshes"] = {"org/private"}
    path = tmp_path / "docker/config.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"auths": {ngc.address(REGISTRY): {"identitytoken": "refreshes"}}}))
    assert fetch(Registry(site), base("1", "org/private")) == [layer("p")]


def test_r2_doctor_follows_a_pull_to_its_last_host(ngc: NgcRegistry, site: Site) -> None:
    (found,) = [
        one for one in look_at_registries(site, "here", [base()]) if one.code == "registry.layers"
    ]
    assert found.status == "OK"
    assert LAYERS in found.found
    ngc.layers_down = True
    (found,) = [
        one for one in look_at_registries(site, "here", [base()]) if one.code == "registry.layers"
    ]
    assert found.status == "FAIL"
    assert ngc.address(LAYERS) in found.found
    assert found.remedy


def test_r3_a_token_server_that_fails_refuses_no_login(
    ngc: NgcRegistry, site: Site, tmp_path: Path
) -> None:
    """An expired key, and then a server that is down: the key is not what keeps the image away."""
    log_in(tmp_path, ngc, "expired")
    ngc.down_for_nobody = True
    with pytest.raises(RegistryError, match="503") as caught:
        Registry(site, tries=1).look_up(base())
    assert not isinstance(caught.value, LoginRefused)


def test_the_stand_ins_certificates_are_what_strict_clients_want(tmp_path: Path) -> None:
    """Python 3.13 and newer look at them so by default."""
    make_certificates(tmp_path, ["nvcr.test", "layers.nvcr.test"])
    strictly = [
        "openssl",
        "verify",
        "-x509_strict",
        "-purpose",
        "sslserver",
        "-verify_hostname",
        "layers.nvcr.test",
    ]
    argv = [*strictly, "-CAfile", str(tmp_path / "ca.pem"), str(tmp_path / "server.pem")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
