"""One name for nodes of two architectures: built where each is at home, published side by side,
launched by the node's.

The nodes of `grace` are this machine's, as are those of `debug`: the site says that they are
aarch64, and the kernel runs arm64's programs by qemu. So what is judged is which image goes where,
and not how fast it runs there.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.recipes import Recipes
from support.testbed import Testbed

pytestmark = [
    pytest.mark.testbed, pytest.mark.alone, pytest.mark.slurm, pytest.mark.registry, pytest.mark.squashfs,
    pytest.mark.apptainer, pytest.mark.lmod, pytest.mark.arm64,
]  # fmt: skip
SITE = """\
modules: {by_architecture: true, keep_days: 0}
registries: {nvcr.io: {mirror: "%s"}}
build: {engine: builtin, ca_bundle: %s, cachedir: %s/cache}
runtime: apptainer
node_types:
  intel: {virtual: true}
  grace: {architecture: aarch64, virtual: true, hpcstack: %s}
partitions:
  debug: {node_type: intel, default: true}
  grace: {node_type: grace}
"""


def control(testbed: Testbed, *words: str) -> None:
    """`scontrol` as Slurm's administrator."""
    environment = {**os.environ, "SLURM_CONF": f"{testbed.folder}/etc/slurm.conf"}
    subprocess.run(["scontrol", *words], env=environment, check=True)


@pytest.fixture(scope="module")
def recipes(testbed: Testbed, two_architectures: str) -> Iterator[Recipes]:
    """A stack for both, locked, on a cluster with a partition of each kind."""
    recipes = Recipes(testbed, "", "architectures")
    recipes.site(
        recipes.render_site_text
        + SITE
        % (testbed.ngc, testbed.ca_bundle, recipes.folder, testbed.folder / "venv/bin/hpcstack")
    )
    base = f"{{image: {two_architectures}, platforms: [linux/amd64, linux/arm64]}}"
    recipes.write(
        "1",
        base=base,
        run="[{name: machine, command: 'uname -m >/opt/machine'}]",
        launch="{mode: plain}",
    )
    recipes.write("0", base=base)
    nodes = testbed.run(
        "sinfo", "--noheader", "--partition=debug", "--format=%N", check=True
    ).stdout.strip()
    control(testbed, "create", "PartitionName=grace", f"Nodes={nodes}")
    assert recipes.run("lock", "demo-0", "demo-1").returncode == 0
    fetched = recipes.run(
        "build", "demo-0", "--platform", "all"
    )  # the bases: the nodes do not see the registry
    assert fetched.returncode == 0, fetched.stdout + fetched.stderr
    yield recipes
    control(testbed, "delete", "PartitionName=grace")


@pytest.fixture(scope="module")
def built(recipes: Recipes) -> dict[str, dict[str, Any]]:
    """{platform: its image}, each built by a job in a partition of its kind."""
    done = recipes.run("build", "demo-1", "--platform", "all", "--on", "slurm", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    for platform, partition in (("linux/amd64", "debug"), ("linux/arm64", "grace")):
        assert f"1 build for {platform} in {partition}" in done.stderr
    documents = [one["artifact"] for one in json.loads(done.stdout)]
    return {one["platform"]: one for one in documents}


@pytest.fixture(scope="module")
def published(recipes: Recipes, built: dict[str, dict[str, Any]]) -> Recipes:
    for words in ((), ("--arch", "aarch64")):
        done = recipes.run(*words, "publish", "demo-1")
        assert done.returncode == 0, done.stderr
    return recipes


def machine_of(image: str) -> str:
    done = subprocess.run(
        ["unsquashfs", "-cat", image, "opt/machine"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_each_image_is_built_where_its_programs_run(built: dict[str, dict[str, Any]]) -> None:
    assert {platform: machine_of(one["image"]) for platform, one in built.items()} == {
        "linux/amd64": "x86_64",
        "linux/arm64": "aarch64",
    }


def test_a_name_means_the_nodes_own_image(published: Recipes) -> None:
    for partition, machine in (("debug", "x86_64"), ("grace", "aarch64")):
        done = published.run("launch", "demo/1", "-p", partition, "--", "cat", "/opt/machine")
        assert (done.returncode, done.stdout.strip()) == (0, machine), done.stderr
        running = published.run("launch", "demo-1", "-p", partition, "--", "uname", "-m")
        assert (running.returncode, running.stdout.strip()) == (0, machine), running.stderr


def test_a_module_of_the_login_node_launches_on_the_other_kind(
    testbed: Testbed, published: Recipes
) -> None:
    script = (
        'module use "$1/modules/$(uname -m)/Core" && module load demo/1 && '
        'hpcstack --site "$1/site.yaml" launch -p grace -- cat /opt/machine'
    )
    done = testbed.bash(script, str(published.folder))
    assert done.stdout.strip() == "aarch64", done.stderr


def test_each_tree_has_its_own_release_of_the_name(testbed: Testbed, published: Recipes) -> None:
    for machine, release in (("x86_64", "1-r1"), ("aarch64", "1-r2")):
        script = 'module use "$1/modules/$2/Core" && module load demo/1 && echo "$HPCSTACK_RELEASE"'
        assert (
            testbed.bash(script, str(published.folder), machine).stdout.strip() == f"demo/{release}"
        )
        checked = published.run("--arch", machine, "status", "--check")
        assert checked.returncode == 0 and f"demo/{release} (D)" in checked.stdout, checked.stdout


def test_an_image_for_other_nodes_is_not_published_into_their_tree(
    published: Recipes, built: dict[str, dict[str, Any]]
) -> None:
    key = built["linux/arm64"]["key"]
    done = published.run("--arch", "x86_64", "publish", "demo-1", "--image", key)
    assert done.returncode == 2
    assert "is for aarch64" in done.stderr
    assert "--arch aarch64 publish" in done.stderr


def test_gc_sees_what_is_published_in_every_tree(
    published: Recipes, built: dict[str, dict[str, Any]]
) -> None:
    images = {platform: Path(one["image"]) for platform, one in built.items()}
    assert published.run("gc", "--older-than", "0").returncode == 0
    assert all(path.exists() for path in images.values())

    removed = published.run(
        "--arch", "aarch64", "remove", "demo/1", "--force", "--reason", "a test"
    )
    assert removed.returncode == 0, removed.stderr
    done = published.run("gc", "--older-than", "0")
    assert done.returncode == 0, done.stderr
    releases = published.folder / "store/releases/demo"
    assert [path.name for path in releases.glob("1-r*")] == ["1-r1"], (
        "what was removed of the other tree is gone"
    )
    assert images["linux/arm64"].exists(), "it is what was built last for those nodes"
    assert published.run("--arch", "aarch64", "status", "--check").returncode == 0


def test_a_site_with_one_tree_says_so(recipes: Recipes) -> None:
    path = recipes.testbed.give(
        "tests/architectures/one.yaml",
        recipes.render_site_text.replace("by_architecture: true, ", ""),
    )
    done = recipes.testbed.run("hpcstack", "--site", str(path), "--arch", "aarch64", "status")
    assert done.returncode == 2
    assert "modules.by_architecture in site.yaml" in done.stderr
