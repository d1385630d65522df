"""The testbed, an image built on it once, and a small base for tests of the build."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
from typing import Any

import pytest

from support.launching import SHOW, STACK
from support.recipes import Recipes
from support.testbed import REPO, Testbed


@pytest.fixture(scope="session")
def testbed() -> Testbed:
    return Testbed()


@pytest.fixture(scope="session")
def built(testbed: Testbed) -> dict[str, Any]:
    """The artifact of pytorch-24.11, built if it is not there."""
    document: dict[str, Any] = testbed.json("build", STACK)
    return document


@pytest.fixture(scope="session")
def mpi_stack(testbed: Testbed) -> str:
    """The stack python-3.12-mpi, built if it is not there."""
    stack = "python-3.12-mpi"
    testbed.json("build", stack)
    return stack


@pytest.fixture(scope="session")
def published(testbed: Testbed, built: dict[str, Any]) -> dict[str, Any]:
    testbed.unpublish("pytorch")
    document: dict[str, Any] = testbed.json("publish", STACK)
    return document


@pytest.fixture(scope="session")
def show(testbed: Testbed) -> str:
    """A script whose ranks say where they are and what they see."""
    return str(testbed.give("tests/launching/show.py", SHOW))


@pytest.fixture(scope="session")
def small_base(testbed: Testbed) -> str:
    """A small image in the testbed's registry, under nvcr.io's name."""
    push_stand_in(testbed, "debian-python")
    return "nvcr.io/hpcstack-tests/debian-python:12"


@pytest.fixture(scope="session")
def tiny_base(testbed: Testbed) -> str:
    """A base without Python, apt and what they need: it is imported, packed and read in a third of
    the time.
    """
    push_stand_in(testbed, "debian-tiny")
    return "nvcr.io/hpcstack-tests/debian-tiny:12"


@pytest.fixture(scope="session")
def ngc_inside(testbed: Testbed) -> str:
    """The same with settings that NVIDIA's images have: see its facts in tests/data."""
    push_stand_in(testbed, "ngc-inside")
    return "nvcr.io/hpcstack-tests/ngc-inside:24.11-py3"


@pytest.fixture(scope="session")
def ubuntu_layout(testbed: Testbed) -> str:
    """A base laid out as Ubuntu 24.04: see its facts in tests/data."""
    push_stand_in(testbed, "ubuntu-layout")
    return "nvcr.io/hpcstack-tests/ubuntu-layout:25.10-py3"


@pytest.fixture(scope="session")
def rocky_like(testbed: Testbed) -> str:
    """A base of rpm and dnf, without dpkg: see its facts in tests/data."""
    push_stand_in(testbed, "rocky-like")
    return "nvcr.io/hpcstack-tests/rocky-like:9"


@pytest.fixture(scope="session")
def two_architectures(testbed: Testbed) -> str:
    """A base for amd64 and for arm64, whose programs qemu runs."""
    push_stand_in(testbed, "two-architectures")
    return "nvcr.io/hpcstack-tests/two-architectures:12"


def push_stand_in(testbed: Testbed, name: str) -> None:
    """The image of tests/data/NAME.json is in the testbed's registry."""
    facts = REPO / f"tests/data/{name}.json"
    cache, address = testbed.folder / "cache", testbed.registry
    made_of = [*sorted((REPO / "ci/standin").glob("*.py")), facts]
    stamp = hashlib.sha256(b"".join(path.read_bytes() for path in made_of)).hexdigest()
    pushed = testbed.folder / f"state/standin-of-tests-{name}"  # beside what the registry keeps
    with (testbed.folder / "small-base.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # each worker of pytest-xdist makes sure that it is there
        if pushed.exists() and pushed.read_text() == stamp:
            return
        argv = [sys.executable, str(REPO / "ci/standin"), str(facts), str(cache), address]
        subprocess.run(argv, check=True, capture_output=True)
        pushed.write_text(stamp)


@pytest.fixture
def recipes(testbed: Testbed, tiny_base: str, request: pytest.FixtureRequest) -> Recipes:
    """Recipes on the tiny base: most tests are of what becomes of an image, whatever is in it.

    What installs packages, or runs Python inside, takes another base: `recipes.base = small_base`.
    """
    return Recipes(testbed, tiny_base, request.node.name.replace("[", "-").replace("]", ""))
