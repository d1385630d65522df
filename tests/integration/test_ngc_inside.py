"""Locks and builds on a base with the settings of NVIDIA's images: what public sources say of them
broke these (R4 to R10).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.index import add_sdist, add_wheel, serve_index
from support.recipes import Recipes
from support.testbed import Testbed

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.builds,
    pytest.mark.registry,
    pytest.mark.squashfs,
    pytest.mark.timeout(900),  # a base of its own is made first, beside six other lanes
]
DEAD = "https://pypi.ngc.hpcstack.invalid"  # RFC 2606: a name that nobody has


def read_lock(recipes: Recipes) -> dict[str, Any]:
    """The one platform of demo-1's lock."""
    (path,) = recipes.testbed.bash(
        'find "$1" -name "demo-1.lock.json"', str(recipes.folder)
    ).stdout.split()
    text = recipes.testbed.run("cat", path, check=True).stdout
    platform: dict[str, Any] = json.loads(text)["base"]["platforms"]["linux/amd64"]
    return platform


@pytest.fixture(scope="module")
def locked(testbed: Testbed, ngc_inside: str) -> tuple[Recipes, dict[str, Any], float]:
    """A recipe, its lock, and how many seconds that took."""
    recipes = Recipes(testbed, ngc_inside, "ngc-inside")
    recipes.write(
        "1",
        packages="{pip: [platformdirs==4.3.8, six==1.17.0]}",
        run="[{name: shell, command: bash -c true}]",
    )
    began = time.monotonic()
    done = recipes.run("lock", "demo-1")
    assert done.returncode == 0, done.stderr
    return recipes, read_lock(recipes), time.monotonic() - began


@pytest.fixture(scope="module")
def image(testbed: Testbed, locked: tuple[Recipes, dict[str, Any], float]) -> str:
    recipes, _, _ = locked
    done = recipes.run(
        "build", "--locked", "demo-1", "--no-cache", "--json"
    )  # a step that is kept says nothing
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["image"])


def files_of(testbed: Testbed, image: str) -> list[str]:
    argv = ["unsquashfs", "-l", image]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return [line.removeprefix("squashfs-root") for line in done.stdout.splitlines()]


def test_r4_an_index_that_nobody_serves_is_left_out(
    locked: tuple[Recipes, dict[str, Any], float],
) -> None:
    _, lock, _ = locked
    (left_out,) = lock["left_out"]
    assert left_out.startswith(f"{DEAD}: ") and len(left_out) > len(DEAD) + 10, "no word of why"


def test_r4_nobody_asks_it_again(
    testbed: Testbed, locked: tuple[Recipes, dict[str, Any], float], image: str
) -> None:
    """pip says which index it looks at; a dead one it tries five times for each project."""
    recipes, _, _ = locked
    log = testbed.bash('cat "$1"/store/logs/*.log', str(recipes.folder)).stdout
    assert f"left out: {DEAD}" in log, "the build does not say so"
    assert "Retrying" not in log
    assert all("left out" in line for line in log.splitlines() if DEAD in line), log


def test_r6_a_bases_constraint_stays_out_of_what_builds_a_source_distribution(
    locked: tuple[Recipes, dict[str, Any], float],
) -> None:
    """The base pins packaging==23.2; platformdirs, taken as a source distribution, is built by
    hatchling >= 1.27, which wants a newer one.
    """
    _, lock, _ = locked
    files = {entry["name"]: entry["file"] for entry in lock["pip"]}
    assert files["platformdirs"] == "platformdirs-4.3.8.tar.gz"
    assert "six" in files


def test_r8_no_script_for_nodes_runs_in_a_step(testbed: Testbed, image: str) -> None:
    files = files_of(testbed, image)
    assert not [path for path in files if path.endswith(".checked")]
    assert "/usr/local/cuda-12.6/compat/lib.real/libcuda.so.1" in files


def test_r10_the_link_that_hides_a_nodes_driver_is_gone(testbed: Testbed, image: str) -> None:
    files = files_of(testbed, image)
    assert "/usr/local/cuda-12.6/compat/lib" not in files
    assert "/usr/local/cuda-12.6/compat/lib.real" in files
    assert not [path for path in files if path.endswith("/build/.indexes")]


TORCH = "2.6.0a0+df5bbc09d1.nv24.11"  # the stand-in's
# A module that holds which torch it was built against, as an extension's ABI does.
AGAINST_TORCH = """
import torch
from setuptools import setup

with open("NAME.py", "w") as file:
    file.write('"%s"' % torch.__version__)
setup(name="NAME", version="1.0", py_modules=["NAME"])
"""
# The same, compiled.
COMPILED = """
import torch
from setuptools import Extension, setup

with open("against.c", "w") as file:
    file.write('#include <Python.h>\\nstatic struct PyModuleDef about = {PyModuleDef_HEAD_INIT, "NAME", "%s", -1, 0};\\n'
               'PyMODINIT_FUNC PyInit_NAME(void) { return PyModule_Create(&about); }\\n' % torch.__version__)
setup(name="NAME", version="1.0", ext_modules=[Extension("NAME", ["against.c"])])
"""
BACKEND = 'build-backend = "setuptools.build_meta"\n'
NEEDS_TORCH = '[build-system]\nrequires = ["setuptools", "wheel", "torch"]\n' + BACKEND
NEEDS_ANOTHER = '[build-system]\nrequires = ["setuptools", "torch==2.15.0"]\n' + BACKEND
# {project: (setup.py, pyproject.toml)}
BUILT_WITH_TORCH = {
    "needs-torch": (AGAINST_TORCH, NEEDS_TORCH),
    "compiled-torch": (COMPILED, NEEDS_TORCH),
    "needs-another-torch": (AGAINST_TORCH, NEEDS_ANOTHER),
    "flash-attn": (AGAINST_TORCH, ""),  # names nothing, and imports torch
}
PLAIN = "from setuptools import setup\nsetup(name={name!r}, version='1.0', py_modules=[])\n"
BUILT_WITH_OTHERS = {
    "wants-old-tools": '[build-system]\nrequires = ["setuptools<76"]\n' + BACKEND,
    "names-nothing": "",
}
SHOWS_SHARED = """
import importlib.metadata
from setuptools import setup

with open("needs_old.py", "w") as file:
    file.write("built_with = %r" % importlib.metadata.version("shared"))
setup(name="needs-old", version="1.0", py_modules=["needs_old"])
"""
# Its backend, which it brings itself, says what else it is built with.
OWN_BACKEND = """
from setuptools.build_meta import *
from setuptools import build_meta


def get_requires_for_build_wheel(settings=None):
    return ["wheel", "helper"]


def build_wheel(*words, **more):
    import helper

    return build_meta.build_wheel(*words, **more)
"""


@pytest.fixture(scope="module")
def index_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with another torch, extensions that want one, and projects that are built with this
    and that.
    """
    folder = tmp_path_factory.mktemp("index")
    for name, (script, pyproject) in BUILT_WITH_TORCH.items():
        files = {"setup.py": script.replace("NAME", name.replace("-", "_"))}
        add_sdist(
            folder, name, "1.0", {**files, **({"pyproject.toml": pyproject} if pyproject else {})}
        )
    for name, pyproject in BUILT_WITH_OTHERS.items():
        files = {"setup.py": PLAIN.format(name=name)}
        add_sdist(
            folder, name, "1.0", {**files, **({"pyproject.toml": pyproject} if pyproject else {})}
        )
    own = (
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "backend"\nbackend-path = '
        '["own"]\n'
    )
    files = {
        "setup.py": PLAIN.format(name="asks-by-itself"),
        "pyproject.toml": own,
        "own/backend.py": OWN_BACKEND,
    }
    add_sdist(folder, "asks-by-itself", "1.0", files)
    # Built with an older release of a project that is in the same lock: pip must not take the newer
    # one from beside it.
    needs_old = '[build-system]\nrequires = ["setuptools", "shared<2"]\n' + BACKEND
    add_sdist(folder, "needs-old", "1.0", {"setup.py": SHOWS_SHARED, "pyproject.toml": needs_old})
    add_sdist(
        folder, "shared", "1.5", {"setup.py": PLAIN.format(name="shared").replace("1.0", "1.5")}
    )
    add_wheel(folder, "shared", "1.0", {"shared.py": "version = '1.0'\n"})
    add_wheel(folder, "helper", "3.0", {"helper.py": "\n"})
    add_wheel(folder, "torch", "2.15.0", {"torch/__init__.py": '__version__ = "2.15.0"\n'})
    add_wheel(
        folder,
        "wraps-torch",
        "1.0",
        {"wraps_torch.py": "import needs_torch\n"},
        requires=["needs-torch"],
    )
    for wanted in ("setuptools==82.0.1", "setuptools==75.8.0", "wheel==0.46.3", "packaging==26.0"):
        place = folder / "simple" / wanted.partition("=")[0]
        argv = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "-d",
            str(place),
            wanted,
        ]
        subprocess.run(argv, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def index(index_folder: Path) -> Iterator[str]:
    with serve_index(index_folder) as url:
        yield url


def with_index(testbed: Testbed, base: str, name: str, index: str) -> Recipes:
    recipes = Recipes(testbed, base, name)
    recipes.site(
        f"{recipes.render_site_text}build: {{pip: {{index_url: '{index}', extra_index_urls: "
        f"['{index}']}}}}\n"
    )
    return recipes


COMPILER = "gcc, libc6-dev, libpython3-dev"


@pytest.mark.soak(
    "who asks for it is seen when it is locked, and a compiler sees the same torch",
    but=lambda asked: asked == "needs-torch",
)
@pytest.mark.parametrize(
    ("asked", "module", "apt"),
    [
        ("needs-torch", "needs_torch", ""),
        ("wraps-torch", "needs_torch", ""),
        ("compiled-torch", "compiled_torch", COMPILER),
    ],
    ids=["named", "as-a-dependency", "compiled"],
)
def test_r7_extensions_are_built_against_the_bases_torch(
    testbed: Testbed, ngc_inside: str, index: str, asked: str, module: str, apt: str
) -> None:
    """NVIDIA's torch is in no index; pip's build environments had PyPI's, of another ABI, or none."""
    recipes = with_index(testbed, ngc_inside, "against-torch", index)
    recipes.write("1", packages=f"{{apt: [{apt}], pip: [{asked}, flash-attn]}}")
    done = recipes.run("lock", "demo-1")
    assert done.returncode == 0, done.stderr
    assert {entry["name"] for entry in read_lock(recipes)["pip_build"]} == {
        "setuptools",
        "wheel",
        "packaging",
    }

    done = recipes.run("build", "--locked", "demo-1", "--json")
    assert done.returncode == 0, done.stderr
    image = json.loads(done.stdout)["image"]
    say = f"import {module}, flash_attn; print({module}.__doc__, flash_attn.__doc__)"
    said = testbed.run(
        "apptainer", "--quiet", "exec", "--no-home", image, "python3", "-c", say, check=True
    ).stdout
    assert said.split() == [TORCH, TORCH]


def test_r7_what_would_be_compiled_against_another_torch_is_refused(
    testbed: Testbed, ngc_inside: str, index: str
) -> None:
    recipes = with_index(testbed, ngc_inside, "against-another", index)
    recipes.write("1", packages="{pip: [needs-another-torch]}")
    done = recipes.run("lock", "demo-1")
    assert done.returncode in (2, 4), done.stderr
    assert f"torch=={TORCH}" in done.stderr
    assert "packages.no_build_isolation" in done.stderr.partition("TIP:")[2]


@pytest.fixture(scope="module")
def from_source(testbed: Testbed, ngc_inside: str, index: str) -> Recipes:
    """A locked recipe of projects that are built with two versions of setuptools, with what a
    backend asks for, and with an older release of what is installed itself.
    """
    recipes = with_index(testbed, ngc_inside, "from-source", index)
    wanted = "wants-old-tools, names-nothing, asks-by-itself, needs-old, shared"
    recipes.write("1", packages=f"{{pip: [{wanted}]}}")
    done = recipes.run("lock", "demo-1")
    assert done.returncode == 0, done.stderr
    return recipes


def test_n17_what_builds_source_distributions_is_locked(from_source: Recipes) -> None:
    locked = read_lock(from_source)["pip_build"]
    versions = [(entry["name"], entry["version"]) for entry in locked]
    assert ("setuptools", "75.8.0") in versions
    assert ("setuptools", "82.0.1") in versions
    assert ("helper", "3.0") in versions, "a backend's own wish (PEP 517) is not locked"
    assert ("shared", "1.0") in versions, "wheels alone are taken to build with"
    assert all(entry["hashes"] for entry in locked)


@pytest.fixture(scope="module")
def built_from_source(from_source: Recipes) -> dict[str, Any]:
    done = from_source.run("build", "--locked", "demo-1", "--engine", "builtin", "--json")
    assert done.returncode == 0, done.stderr
    artifact: dict[str, Any] = json.loads(done.stdout)
    return artifact


@pytest.mark.parametrize("engine", ["apptainer", "builtin"])
@pytest.mark.soak("engines give one image: test_engines", but=lambda engine: engine == "builtin")
def test_n17_images_from_source_have_the_same_bytes_again(
    from_source: Recipes, built_from_source: dict[str, Any], engine: str
) -> None:
    words = ("build", "--locked", "--no-cache", "demo-1", "--engine", engine, "--json")
    again = from_source.run(*words)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["sha256"] == built_from_source["sha256"]


def test_n17_a_build_environment_has_what_was_locked_and_nothing_beside_it(
    testbed: Testbed, built_from_source: dict[str, Any]
) -> None:
    """The lock takes wheels alone to build with; the same project is installed from source, in a
    newer release.
    """
    say = (
        "import importlib.metadata, needs_old; print(needs_old.built_with, "
        "importlib.metadata.version('shared'))"
    )
    image = built_from_source["image"]
    said = testbed.run(
        "apptainer", "--quiet", "exec", "--no-home", image, "python3", "-c", say, check=True
    ).stdout
    assert said.split() == ["1.0", "1.5"]


@pytest.mark.soak(
    "another bundle",
    kept="tests/integration/test_images.py::test_a_bundle_builds_where_there_is_no_network",
)
def test_n17_a_bundle_brings_what_builds_source_distributions(from_source: Recipes) -> None:
    bundle = str(from_source.folder / "demo.tar")
    done = from_source.run("bundle", "create", "demo-1", "-o", bundle)
    assert done.returncode == 0, done.stderr
    done = from_source.run(
        "bundle", "apply", bundle, "--recipes-to", str(from_source.folder / "brought")
    )
    assert done.returncode == 0, done.stderr
    done = from_source.run("build", "--offline", "--no-cache", "demo-1")
    assert done.returncode == 0, done.stderr


def test_n17_other_bytes_are_refused(from_source: Recipes, index_folder: Path) -> None:
    """The same version with other bytes, in the index that was locked.

    Last: it changes the index.
    """
    add_wheel(index_folder, "helper", "3.0", {"helper.py": "print('somebody else')\n"})
    done = from_source.run("build", "--locked", "--no-cache", "demo-1")
    assert done.returncode == 4 and "DO NOT MATCH THE HASHES" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("package", "says"),
    [
        (
            "libopenmpi-dev",
            "apt would install libopenmpi.* beside the base's own HPC-X 2.21 with Open MPI 4.1.7",
        ),
        ("rdma-core=44.0-2", "(?s)the base holds: rdma-core.*for its libraries: leave it out"),
    ],
    ids=["r11", "p10"],
)
def test_what_does_not_go_with_nvidias_packages_is_refused(
    testbed: Testbed, ngc_inside: str, package: str, says: str
) -> None:
    recipes = Recipes(testbed, ngc_inside, "ngc-apt")
    recipes.write("1", packages=f"{{apt: ['{package}']}}")
    done = recipes.run("lock", "demo-1")
    assert done.returncode in (2, 4) and re.search(says, done.stderr), done.stderr


def test_r11_files_that_the_base_has_removed_from_a_package_are_named(
    testbed: Testbed, ngc_inside: str
) -> None:
    recipes = Recipes(testbed, ngc_inside, "ngc-apt")
    recipes.write("1", packages="{apt: [libibverbs-dev]}")
    done = recipes.run("lock", "demo-1")
    assert done.returncode == 0, done.stderr
    gone = "/usr/lib/x86_64-linux-gnu/libibverbs.so."
    assert (
        f"libibverbs-dev is in the base already, without some of its files: {gone}" in done.stderr
    ), done.stderr
