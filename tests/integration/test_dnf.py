"""Packages of rpm, on a base laid out as NVIDIA's of Rocky Linux are: locked by hash, and guarded.

The base is a stand-in: rpm, dnf and their databases are real, the packages are made on the spot.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from support.recipes import Recipes
from support.testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.builds, pytest.mark.registry, pytest.mark.squashfs]


@pytest.fixture(scope="module")
def shared(testbed: Testbed, rocky_like: str) -> Recipes:
    return Recipes(testbed, rocky_like, "dnf")


@pytest.fixture(scope="module")
def built(shared: Recipes) -> dict[str, Any]:
    """The image of a recipe that names one package, whose other comes with it."""
    shared.write("1", packages="{dnf: [tool=1.0-1.el9]}")
    locked = shared.run("lock", "demo-1")
    assert locked.returncode == 0, locked.stderr
    done = shared.run("build", "--locked", "demo-1", "--engine", "builtin", "--json")
    assert done.returncode == 0, done.stderr
    artifact: dict[str, Any] = json.loads(done.stdout)
    return artifact


def read_lock(shared: Recipes, stack: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        (shared.folder / f"recipes/{stack}.lock.json").read_text()
    )
    found: dict[str, Any] = document["base"]["platforms"]["linux/amd64"]
    return found


def test_what_it_needs_is_locked_by_hash_and_listed(shared: Recipes, built: dict[str, Any]) -> None:
    locked = read_lock(shared, "demo-1")["dnf"]
    assert [(one["name"], one["version"], one["arch"]) for one in locked] == [
        ("tool", "1.0-1.el9", "noarch"),
        ("tool-data", "1.2-1.el9", "noarch"),
    ]
    assert [one["hash"][:7] for one in locked] == ["sha256:", "sha256:"]
    assert built["other"] == {
        "libnccl": "2.23.4-1.el9",
        "tool": "1.0-1.el9",
        "tool-data": "1.2-1.el9",
    }
    assert built["unlisted"] == []
    found = json.loads(shared.run("find", "tool-data", "--json").stdout)["hits"]
    assert [one["version"] for one in found] == ["1.2-1.el9", "1.2-1.el9"]  # image and lock
    again = shared.run("lock", "demo-1", "--only", "tool")
    assert again.returncode == 0, again.stderr
    assert read_lock(shared, "demo-1")["dnf"] == locked


def test_what_would_replace_the_bases_nccl_is_refused_when_it_is_locked(shared: Recipes) -> None:
    shared.write("2", packages="{dnf: [nccl-tool]}")
    done = shared.run("lock", "demo-2")
    assert done.returncode != 0
    assert "dnf would replace libnccl 2.23.4-1.el9 of the base by 2.30.3-1.el9" in done.stderr
    shared.write("2", packages="{dnf: [nccl-tool], allow_replace: [nccl]}")
    assert shared.run("lock", "demo-2").returncode == 0


def test_a_step_that_replaces_it_fails_by_the_guard(shared: Recipes) -> None:
    shared.write("3", run='[{name: newer, command: "dnf -y -q install libnccl-2.30.3"}]')
    assert shared.run("lock", "demo-3").returncode == 0
    done = shared.run("build", "demo-3", "--engine", "builtin")
    assert done.returncode != 0
    assert "rpm libnccl=2.23.4-1.el9" in done.stderr


def test_a_name_that_no_repository_has(shared: Recipes) -> None:
    shared.write("4", packages="{dnf: [no-such-tool]}")
    done = shared.run("lock", "demo-4")
    assert "no repository of the base has no-such-tool" in done.stderr


def test_an_image_of_debian_has_no_dnf(shared: Recipes, small_base: str) -> None:
    shared.write("5", base=f"{{image: {small_base}}}", packages="{dnf: [git]}")
    done = shared.run("lock", "demo-5")
    assert "there is no dnf 4 in the base" in done.stderr


def test_a_bundle_has_its_files_and_builds_without_a_network(
    shared: Recipes, built: dict[str, Any]
) -> None:
    bundle = shared.folder / "bundle"
    made = shared.run("bundle", "create", "demo-1", "-o", str(bundle))
    assert made.returncode == 0, made.stderr
    with tarfile.open(bundle) as archive:
        names = [Path(name).name for name in archive.getnames() if name.endswith(".rpm")]
    assert sorted(names) == ["tool-1.0-1.el9.noarch.rpm", "tool-data-1.2-1.el9.noarch.rpm"]
    away = str(shared.folder / "away")
    applied = shared.run("bundle", "apply", str(bundle), "--recipes-to", away)
    assert applied.returncode == 0, applied.stderr
    again = shared.run(
        "build", "--locked", "demo-1", "--engine", "builtin", "--offline", "--no-cache", "--json"
    )
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["other"] == built["other"]
