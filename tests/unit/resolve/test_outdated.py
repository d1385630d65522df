"""What is newer than what is locked, by a registry: another tag, and the same tag with another digest."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcstack.cli import main
from hpcstack.lock.file import LockFile
from hpcstack.oci import client
from hpcstack.oci.client import Registry
from hpcstack.recipe.catalog import Catalog
from hpcstack.resolve.base import resolve_base
from hpcstack.resolve.outdated import NewerBases
from hpcstack.site.load import Site, load_site
from support.layers import member, tar, zipped
from support.ngc_registry import REGISTRY, NgcRegistry, resolve_here

RECIPE = """\
apiVersion: hpcstack/v1
name: mine
version: "24.11"
summary: S
base: {image: "nvcr.io/nvidia/pytorch:24.11-py3"}
"""


@pytest.fixture
def ngc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NgcRegistry]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setattr(client, "BACK_OFF", 0.01)
    (tmp_path / "ngc").mkdir()
    found = NgcRegistry(tmp_path / "ngc")
    publish(found, b"first")
    with found.running():
        monkeypatch.setattr(socket, "getaddrinfo", resolve_here(found))
        yield found


def publish(ngc: NgcRegistry, content: bytes, created: str = "") -> str:
    """An image of CONTENT under the tag; what has it before keeps its digest alone."""
    config: dict[str, Any] = {
        "os": "linux", "architecture": "amd64", "config": {"Env": ["CUDA_VERSION=12.6.3"]},
    }  # fmt: skip
    if created:
        config["created"] = created
    layer = zipped(tar([member("etc/release", content)]))
    return ngc.add_image("nvidia/pytorch", "24.11-py3", [layer], config=config)


@pytest.fixture
def site(tmp_path: Path, ngc: NgcRegistry, monkeypatch: pytest.MonkeyPatch) -> Site:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/mine-24.11.yaml").write_text(RECIPE)
    said = {
        "store": str(tmp_path / "store"),
        "lock_dir": str(tmp_path / "locks"),
        "module_root": str(tmp_path / "modules"),
        "recipe_dirs": [str(tmp_path / "recipes")],
        "registries": {"nvcr.io": {"mirror": ngc.address(REGISTRY)}},
        "build": {"ca_bundle": str(ngc.ca)},
    }
    (tmp_path / "site.yaml").write_text(json.dumps(said))
    monkeypatch.setenv("HPCSTACK_SITE", str(tmp_path / "site.yaml"))
    return load_site(str(tmp_path / "site.yaml")).site


@pytest.mark.parametrize(
    ("created", "day"),
    [("2026-11-20T10:00:00Z", "2026-11-20"), ("", ""), ("<script>", ""), ("20261120", "")],
)
def test_a_tag_that_has_moved_is_told(
    ngc: NgcRegistry, site: Site, created: str, day: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """So security rebuilds come: NVIDIA puts another image under the same tag."""
    recipe = Catalog(site.recipe_dirs).find("mine-24.11")
    registry = Registry(site)
    LockFile(recipe, site).write(resolve_base(recipe.stack, registry))
    before = NewerBases(site, registry).find(recipe)
    assert (before.moved_to, before.newer) == ("", [])
    assert run("outdated", "--check") == 0
    capsys.readouterr()

    digest = publish(ngc, b"second", created)
    after = NewerBases(site, registry).find(recipe)
    assert (after.moved_to, after.moved_on) == (digest, day)
    assert run("outdated", "mine-*", "--check") == 1
    said = capsys.readouterr().out
    since = f" since {day}" if day else ""
    assert f"same tag, other digest{since}: {digest[:19]}" in said
    assert "packages were not looked at" in said


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def test_a_recipe_that_names_its_digest_does_not_move(ngc: NgcRegistry, site: Site) -> None:
    digest = next(digest for name, digest in ngc.manifests if digest.startswith("sha256:"))
    path = site.recipe_dirs[0] / "mine-24.11.yaml"
    path.write_text(RECIPE.replace("24.11-py3", f"24.11-py3@{digest}"))
    recipe = Catalog(site.recipe_dirs).find("mine-24.11")
    lock = resolve_base(Catalog(site.recipe_dirs).find("mine-24.11").stack, Registry(site))
    LockFile(recipe, site).write(lock)
    publish(ngc, b"second")
    found = NewerBases(site, Registry(site)).find(recipe)
    assert found.moved_to == ""
