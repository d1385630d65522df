"""`repair --images`: an image that is gone or damaged is built again, of what its release keeps, to
the same bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.recipes import Recipes
from support.testbed import Testbed

pytestmark = [
    pytest.mark.testbed, pytest.mark.builds, pytest.mark.registry, pytest.mark.squashfs, pytest.mark.lmod,
]  # fmt: skip
BUILD = "build: {engine: builtin, cachedir: %s/cache%s}\n"


@pytest.fixture
def published(recipes: Recipes) -> dict[str, Any]:
    """The image of demo/1-r1, which is published; its recipe says something else since."""
    recipes.site(recipes.render_site_text + BUILD % (recipes.folder, ""))
    recipes.write("1", run="[{name: one, command: 'echo 1 >/opt/one'}]")
    built = recipes.run("build", "demo-1", "--json")
    assert built.returncode == 0, built.stderr
    done = recipes.run("publish", "demo-1")
    assert done.returncode == 0, done.stderr
    recipes.write("1", run="[{name: two, command: 'echo 2 >/opt/two'}]")
    document: dict[str, Any] = json.loads(built.stdout)
    return document


def check(recipes: Recipes) -> str:
    """What `status --check` finds wrong."""
    done = recipes.run("status", "--check")
    assert done.returncode in (0, 1), done.stderr
    return done.stdout if done.returncode else ""


@pytest.mark.soak(
    "another build of the same release",
    kept="tests/integration/test_rebuilding.py::test_a_flipped_byte_is_made_right_and_what_was_built_last_stays_that",
)
def test_an_image_that_is_gone_is_made_again_of_what_its_release_keeps(
    testbed: Testbed, recipes: Recipes, published: dict[str, Any]
) -> None:
    testbed.run("rm", "-rf", str(Path(published["image"]).parent), check=True)
    assert "demo/1-r1: its image is gone: hpcstack repair demo/1-r1 --images" in check(recipes)
    without = recipes.run("repair")
    assert without.returncode == 1
    assert "LEFT demo/1-r1: its image is gone" in without.stdout

    foretold = json.loads(recipes.run("repair", "--images", "--dry-run", "--json").stdout)
    assert (foretold["images"], foretold["left"]) == (["demo/1-r1"], [])
    assert not Path(published["image"]).exists()
    done = recipes.run("repair", "--images", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["images"] == ["demo/1-r1"]
    assert check(recipes) == ""
    digest = testbed.run("sha256sum", published["image"], check=True).stdout.split()[0]
    assert digest == published["sha256"]


def test_a_flipped_byte_is_made_right_and_what_was_built_last_stays_that(
    testbed: Testbed, recipes: Recipes, published: dict[str, Any]
) -> None:
    assert recipes.run("lock", "demo-1").returncode == 0
    newer = recipes.run("build", "demo-1", "--json")
    assert newer.returncode == 0, newer.stderr
    testbed.bash(
        'chmod u+w "$1" && printf X | dd of="$1" bs=1 seek=4096 conv=notrunc status=none',
        published["image"],
    )
    assert "hpcstack repair demo/1-r1 --images builds it again" in check(recipes)

    done = recipes.run("repair", "demo/1-r1", "--images")
    assert done.returncode == 0 and "put back: demo/1-r1: its image" in done.stdout, done.stderr
    assert check(recipes) == ""
    (newest,) = json.loads(recipes.run("images", "--json").stdout)
    assert newest["key"] == json.loads(newer.stdout)["key"], "launch takes what was built last"


@pytest.mark.soak(
    "another build of the same release",
    kept="tests/integration/test_rebuilding.py::test_a_flipped_byte_is_made_right_and_what_was_built_last_stays_that",
)
def test_a_named_release_is_read_whatever_its_file_looks_like(
    testbed: Testbed, recipes: Recipes, published: dict[str, Any]
) -> None:
    script = (
        'cp -p "$1" kept && chmod u+w "$1" && printf X | dd of="$1" bs=1 seek=4096 conv=notrunc '
        "status=none && "
        'touch -r kept "$1" && rm kept'  # as a disk does it that loses a bit
    )
    testbed.bash(script, published["image"])
    deep = recipes.run("status", "--check", "--deep")
    assert deep.returncode == 1 and "hpcstack repair demo/1-r1 --images" in deep.stdout, deep.stdout
    done = recipes.run("repair", "demo/1-r1", "--images")
    assert done.returncode == 0 and "put back: demo/1-r1: its image" in done.stdout, (
        done.stdout + done.stderr
    )
    assert recipes.run("status", "--check", "--deep").returncode == 0


@pytest.mark.soak(
    "another build of the same release",
    kept="tests/integration/test_rebuilding.py::test_a_flipped_byte_is_made_right_and_what_was_built_last_stays_that",
)
def test_what_was_removed_is_not_built_again(
    testbed: Testbed, recipes: Recipes, published: dict[str, Any]
) -> None:
    # jobs of other tests may run an image of the same key
    words = ("demo/1", "--force", "--no-slurm", "--reason", "a test")
    assert recipes.run("remove", *words).returncode == 0
    testbed.run("rm", "-rf", str(Path(published["image"]).parent), check=True)
    done = json.loads(recipes.run("repair", "--images", "--json").stdout)
    assert done["images"] == []
    assert not Path(published["image"]).exists()


def test_bytes_that_are_right_are_only_read(
    testbed: Testbed, recipes: Recipes, published: dict[str, Any]
) -> None:
    testbed.bash(
        'cp "$1" "$1.new" && mv "$1.new" "$1"', published["image"]
    )  # a restore from a backup
    assert check(recipes)
    done = recipes.run("repair", "--images")
    assert done.returncode == 0 and "building the image" not in done.stderr, done.stderr
    assert check(recipes) == ""


def test_what_would_be_another_image_is_not_made(
    testbed: Testbed, recipes: Recipes, published: dict[str, Any]
) -> None:
    folder = Path(published["image"]).parent
    testbed.run("rm", "-rf", str(folder), check=True)
    recipes.site(recipes.render_site_text.replace("cachedir", "compression: gzip, cachedir"))
    done = recipes.run("repair", "--images")
    assert done.returncode == 1
    assert not folder.exists()
    assert (
        "the lock of demo-1 would give another image now: build.compression or another setting"
        in done.stdout
    )
    assert "bring it back from a backup" in done.stdout


def test_a_lock_that_is_not_the_releases_own_is_not_built(
    testbed: Testbed, recipes: Recipes, published: dict[str, Any]
) -> None:
    folder = Path(published["image"]).parent
    testbed.run("rm", "-rf", str(folder), check=True)
    lock = recipes.folder / "store/releases/demo/1-r1/lock.json"
    testbed.bash(
        'chmod u+w "$1" && sed -i "s/\\"workdir\\": \\"\\"/\\"workdir\\": \\"\\/x\\"/" "$1"',
        str(lock),
    )
    done = recipes.run("repair", "demo/1-r1", "--images", "--dry-run")
    assert f"would be put back: demo/1-r1: {lock}" in done.stdout, done.stdout
    assert (
        recipes.run("repair", "--images").returncode == 0
    )  # the lock comes back first, and then the image
    assert check(recipes) == ""
