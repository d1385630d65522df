"""Locks and builds on a base with the settings of NVIDIA's images: what public sources say of them broke these (R4 to R10)."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

import pytest

from support.recipes import Recipes
from support.testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.builds, pytest.mark.registry, pytest.mark.squashfs]
DEAD = "https://pypi.ngc.hpcstack.invalid"  # RFC 2606: a name that nobody has


@pytest.fixture(scope="module")
def locked(testbed: Testbed, ngc_inside: str) -> tuple[Recipes, dict[str, Any], float]:
    """A recipe, its lock, and how many seconds that took."""
    recipes = Recipes(testbed, ngc_inside, "ngc-inside")
    recipes.write(
        "1", packages="{pip: [platformdirs==4.3.8, six==1.17.0]}", run="[{name: shell, command: bash -c true}]"
    )
    began = time.monotonic()
    done = recipes.run("lock", "demo-1")
    assert done.returncode == 0, done.stderr
    (path,) = testbed.bash('find "$1" -name "demo-1.lock.json"', str(recipes.folder)).stdout.split()
    lock = json.loads(testbed.run("cat", path).stdout)
    return recipes, lock["base"]["platforms"]["linux/amd64"], time.monotonic() - began


@pytest.fixture(scope="module")
def image(testbed: Testbed, locked: tuple[Recipes, dict[str, Any], float]) -> str:
    recipes, _, _ = locked
    done = recipes.run("build", "--locked", "demo-1", "--json")
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["image"])


def files_of(testbed: Testbed, image: str) -> list[str]:
    argv = ["unsquashfs", "-l", image]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return [line.removeprefix("squashfs-root") for line in done.stdout.splitlines()]


def test_r4_an_index_that_nobody_serves_is_left_out(locked: tuple[Recipes, dict[str, Any], float]) -> None:
    _, lock, _ = locked
    (left_out,) = lock["left_out"]
    assert left_out.startswith(f"{DEAD}: ") and len(left_out) > len(DEAD) + 10, "no word of why"


def test_r4_nobody_asks_it_again(testbed: Testbed, locked: tuple[Recipes, dict[str, Any], float], image: str) -> None:
    """pip says which index it looks at; a dead one it tries five times for each project."""
    recipes, _, _ = locked
    log = testbed.bash('cat "$1"/store/logs/*.log', str(recipes.folder)).stdout
    assert f"left out: {DEAD}" in log, "the build does not say so"
    assert "Retrying" not in log and log.count(DEAD) == 1, log


def test_r6_a_bases_constraint_stays_out_of_what_builds_a_source_distribution(
    locked: tuple[Recipes, dict[str, Any], float],
) -> None:
    """The base pins packaging==23.2; platformdirs, taken as a source distribution, is built by hatchling >= 1.27,
    which wants a newer one."""
    _, lock, _ = locked
    files = {entry["name"]: entry["file"] for entry in lock["pip"]}
    assert files["platformdirs"] == "platformdirs-4.3.8.tar.gz" and "six" in files


def test_r8_no_script_for_nodes_runs_in_a_step(testbed: Testbed, image: str) -> None:
    files = files_of(testbed, image)
    assert not [path for path in files if path.endswith(".checked")]
    assert "/usr/local/cuda-12.6/compat/lib.real/libcuda.so.1" in files


def test_r10_the_link_that_hides_a_nodes_driver_is_gone(testbed: Testbed, image: str) -> None:
    files = files_of(testbed, image)
    assert "/usr/local/cuda-12.6/compat/lib" not in files
    assert "/usr/local/cuda-12.6/compat/lib.real" in files
    assert not [path for path in files if path.endswith("/build/.indexes")]
