"""Stacks move on: onto another month of their base, and package by package within it.

The base is a small image under two tags of the testbed's registry; the packages are in an index of
this machine, to which newer ones come.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.index import add_wheel, serve_index
from support.recipes import Recipes
from support.testbed import Testbed

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.builds,
    pytest.mark.registry,
    pytest.mark.squashfs,
    pytest.mark.timeout(900),
]
REPOSITORY = "hpcstack-tests/month"
RECIPE = f"""\
# The stack of this test
apiVersion: hpcstack/v1
name: demo
summary: A test on 25.01 (the first of its kind)
base: {{image: "nvcr.io/{REPOSITORY}:${{stack.version}}"}} # by month
packages:
  pip: [alpha, beta] # not in the base
matrix: {{version: ["25.01"]}}
"""
WITH_APT = f"""\
apiVersion: hpcstack/v1
name: tools
version: "1"
summary: A test with a package of the distribution's
base: {{image: "nvcr.io/{REPOSITORY}:25.01"}}
packages: {{apt: [tree], pip: [alpha, beta]}}
"""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of an index: alpha, and beta, which asks for gamma."""
    folder = tmp_path_factory.mktemp("index")
    add_release(folder, "1.0")
    return folder


def add_release(folder: Path, version: str) -> None:
    for name in ("alpha", "gamma"):
        add_wheel(folder, name, version, {f"{name}.py": ""})
    add_wheel(folder, "beta", version, {"beta.py": ""}, [f"gamma>={version}"])


@pytest.fixture(scope="module")
def recipes(testbed: Testbed, small_base: str, index: Path) -> Iterator[Recipes]:
    """The recipe, locked on the first month."""
    source = f"docker://{testbed.registry}/{small_base.partition('/')[2]}"
    for month in ("25.01", "25.02"):
        target = f"docker://{testbed.registry}/{REPOSITORY}:{month}"
        plain = ["--src-tls-verify=false", "--dest-tls-verify=false"]
        subprocess.run(["skopeo", "copy", "--quiet", *plain, source, target], check=True)

    found = Recipes(testbed, small_base, "moving-on")
    for name, text in (("demo.yaml", RECIPE), ("tools-1.yaml", WITH_APT)):
        path = str(found.folder / "recipes" / name)
        testbed.give(path.removeprefix(f"{testbed.home}/"), text)
    with serve_index(index) as url:
        found.site(f"{found.render_site_text}build: {{pip: {{index_url: '{url}'}}}}\n")
        for stack in ("demo-25.01", "tools-1"):
            done = found.run("lock", stack)
            assert done.returncode == 0, done.stderr
    add_release(index, "1.1")
    with serve_index(index) as url:
        text = found.render_site_text.partition("build:")[0]
        found.site(f"{text}build: {{pip: {{index_url: '{url}'}}}}\n")
        yield found


def read_lock(recipes: Recipes, stack: str) -> dict[str, Any]:
    path = recipes.folder / f"recipes/{stack}.lock.json"
    if not path.exists():
        path = recipes.folder / f"locks/{stack}.lock.json"
    found: dict[str, Any] = json.loads(recipes.testbed.run("cat", str(path), check=True).stdout)
    return found


def rewrite(recipes: Recipes, before: str, after: str) -> None:
    """Replace BEFORE by AFTER in the recipe."""
    path = recipes.folder / "recipes/demo.yaml"
    text = recipes.testbed.run("cat", str(path), check=True).stdout
    assert before in text
    name = str(path).removeprefix(f"{recipes.testbed.home}/")
    recipes.testbed.give(name, text.replace(before, after))


def list_versions(lock: dict[str, Any]) -> dict[str, str]:
    platform = lock["base"]["platforms"]["linux/amd64"]
    return {one["name"]: one["version"] for one in (*platform.get("apt", ()), *platform["pip"])}


def test_outdated_sees_packages(recipes: Recipes) -> None:
    done = recipes.run("outdated", "demo-25.01", "--packages", "--check", "--json")
    assert done.returncode == 1, done.stderr
    (row,) = json.loads(done.stdout)
    assert (row["newest"], row["moved_to"]) == ("25.02", "")
    moved = {one["name"]: (one["before"], one["after"]) for one in row["packages"]}
    assert moved == dict.fromkeys(("alpha", "beta", "gamma"), ("1.0", "1.1"))


def test_one_package_moves_and_nothing_else(recipes: Recipes) -> None:
    before = read_lock(recipes, "demo-25.01")
    assert list_versions(before).keys() >= {"alpha", "beta", "gamma"}

    # What it needs stays as well, until it is named: nothing moves unseen.
    done = recipes.run("lock", "demo-25.01", "--only", "beta")
    assert done.returncode == 0, done.stderr
    assert "nothing has moved" in done.stderr
    assert list_versions(read_lock(recipes, "demo-25.01")) == list_versions(before)
    rewrite(recipes, "pip: [alpha, beta]", "pip: [alpha, beta>=1.1]")
    done = recipes.run("lock", "demo-25.01", "--only", "beta")
    assert done.returncode == 2, done.stderr
    assert "gamma" in done.stderr
    assert "let it move, too: --only NAME" in done.stderr
    rewrite(recipes, "pip: [alpha, beta>=1.1]", "pip: [alpha, beta]")

    done = recipes.run("lock", "demo-25.01", "--only", "beta", "--only", "gamma")
    assert done.returncode == 0, done.stderr
    after = read_lock(recipes, "demo-25.01")
    moved = {"beta": "1.1", "gamma": "1.1"}
    assert list_versions(after) == {**list_versions(before), **moved}
    assert after["base"]["index_digest"] == before["base"]["index_digest"]
    assert recipes.run("lock", "demo-25.01", "--check").returncode == 0

    done = recipes.run("lock", "demo-25.01", "--only", "torch")
    assert done.returncode == 2
    assert "adds no torch to its base" in done.stderr


def test_what_apt_installs_stays_as_it_was(recipes: Recipes) -> None:
    before = list_versions(read_lock(recipes, "tools-1"))
    assert before.keys() >= {"alpha", "beta", "gamma", "tree"}
    done = recipes.run("lock", "tools-1", "--only", "beta", "--only", "gamma")
    assert done.returncode == 0, done.stderr
    moved = {"beta": "1.1", "gamma": "1.1"}
    assert list_versions(read_lock(recipes, "tools-1")) == {**before, **moved}


def test_a_stack_moves_to_the_next_month(recipes: Recipes) -> None:
    done = recipes.run("bump", "demo", "--newest")
    assert done.returncode == 0, done.stderr
    assert "## demo-25.01 -> demo-25.02" in done.stdout
    assert "`demo.yaml`: changed" in done.stdout
    assert "| base | `image` |" in done.stdout

    text = recipes.testbed.run("cat", str(recipes.folder / "recipes/demo.yaml"), check=True).stdout
    assert text == RECIPE.replace('["25.01"]', '["25.01", "25.02"]')
    assert list_versions(read_lock(recipes, "demo-25.02"))["alpha"] == "1.1"
    assert list_versions(read_lock(recipes, "demo-25.01"))["alpha"] == "1.0", "the old one stays"

    again = recipes.run("bump", "demo-*", "--newest", "--json")
    assert again.returncode == 0, again.stderr
    (row,) = json.loads(again.stdout)
    assert (row["stack"], row["file"]) == ("demo-25.02", "")
