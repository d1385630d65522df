"""Locks and builds on a base laid out as Ubuntu 24.04, on which NVIDIA's images stand from 24.10
on: apt's sources in stanzas that name their key, a Python that says it is externally managed. It is
Debian 13, PLAYED, not NVIDIA's files.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from support.recipes import Recipes
from support.testbed import Testbed

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.builds,
    pytest.mark.registry,
    pytest.mark.squashfs,
    pytest.mark.timeout(900),  # a base of its own is made first, beside six other lanes
]
SOURCES = "etc/apt/sources.list.d/0000debian.sources"


@pytest.fixture(scope="module")
def recipes(testbed: Testbed, ubuntu_layout: str) -> Recipes:
    made = Recipes(testbed, ubuntu_layout, "ubuntu-layout")
    made.write("1", packages="{apt: [tree], pip: [six==1.17.0, colorama]}")
    return made


@pytest.fixture(scope="module")
def lock(testbed: Testbed, recipes: Recipes) -> dict[str, Any]:
    done = recipes.run("lock", "demo-1")
    assert done.returncode == 0, done.stderr
    (path,) = testbed.bash('find "$1" -name "demo-1.lock.json"', str(recipes.folder)).stdout.split()
    document: dict[str, Any] = json.loads(testbed.run("cat", path).stdout)["base"]["platforms"][
        "linux/amd64"
    ]
    return document


def test_the_base_is_what_it_says(testbed: Testbed, recipes: Recipes, lock: dict[str, Any]) -> None:
    """Else the other tests would show nothing."""
    done = recipes.run("build", "--locked", "demo-1", "--json")
    assert done.returncode == 0, done.stderr
    image = json.loads(done.stdout)["image"]
    listed = subprocess.run(
        ["unsquashfs", "-l", image], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    files = {line.removeprefix("squashfs-root/") for line in listed}
    assert SOURCES in files
    assert "etc/apt/sources.list" not in files
    assert any(path.endswith("/EXTERNALLY-MANAGED") for path in files)

    sources = subprocess.run(
        ["unsquashfs", "-cat", image, SOURCES], capture_output=True, text=True, check=True
    ).stdout
    assert sources.count("Signed-By: /usr/share/keyrings/") == 2, "the build has changed them"


def test_apt_and_pip_are_locked_and_installed(
    testbed: Testbed, recipes: Recipes, lock: dict[str, Any]
) -> None:
    assert [entry["name"] for entry in lock["apt"]] == ["tree"], lock["apt"]
    assert {entry["name"] for entry in lock["pip"]} == {"six", "colorama"}
    done = recipes.run("build", "--locked", "demo-1", "--json")
    built = json.loads(done.stdout)
    assert built["pip"]["six"] == "1.17.0"
    assert "tree" in built["apt"]


def test_a_sites_mirror_stands_in_the_stanzas(recipes: Recipes, lock: dict[str, Any]) -> None:
    """One that nobody has: apt names it."""
    mirror = "http://mirror.hpcstack.invalid/debian"
    text = recipes.render_site_text
    try:
        recipes.site(
            f'{text}build: {{apt: {{mirrors: {{"http://deb.debian.org/debian": "{mirror}"}}}}}}\n'
        )
        recipes.write("2", packages="{apt: [tree]}")
        done = recipes.run("lock", "demo-2")
        assert done.returncode and "mirror.hpcstack.invalid" in done.stderr, done.stderr
    finally:
        recipes.site(text)
