"""Modules that EasyBuild makes, and ours, in one MODULEPATH: docs/how-to/beside-easybuild.md.

EasyBuild is the one from PyPI. Its recipes are of the easyblock Bundle, which builds nothing.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpcstack.launch.foreign_python import describe_foreign_packages
from support.modules import LMOD, Place, bash, modulepath, snapshot

pytestmark = pytest.mark.lmod
RECIPE = """\
easyblock = 'Bundle'
name = '{name}'
version = '{version}'
homepage = 'https://example.org'
description = "a bundle of nothing"
toolchain = SYSTEM
moduleclass = 'devel'
{more}
"""
PACKAGES = "lib/python3.11/site-packages"
RECIPES = {
    "PyTorch-2.1.2": f"modextrapaths = {{'PYTHONPATH': '{PACKAGES}'}}\n"
    f"postinstallcmds = ['mkdir -p %(installdir)s/{PACKAGES}/torch']",
    "OpenMPI-4.1.5": "modextravars = {'OMPI_MCA_pml': 'ucx'}",
    "Python-3.11.5": "",
}


@pytest.fixture(scope="module")
def software(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree of EasyBuild's, made from RECIPES."""
    top = tmp_path_factory.mktemp("easybuild")
    for full_name, more in RECIPES.items():
        name, _, version = full_name.rpartition("-")
        recipe = RECIPE.format(name=name, version=version, more=more)
        (top / f"{full_name}.eb").write_text(recipe)
    options = [f"--prefix={top}", "--modules-tool=Lmod", "--module-syntax=Lua", "--disable-rpath"]
    options.append(f"--installpath={top}")
    if os.geteuid() == 0:
        options.append("--allow-use-as-root-and-accept-consequences")
    # A site's own settings would have it write into the site's own tree.
    settings = ("EASYBUILD_", "XDG_CONFIG_")
    without_settings = {
        name: value for name, value in os.environ.items() if not name.startswith(settings)
    }
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "easybuild.main", *options, *map(str, top.glob("*.eb"))],
        env={**without_settings, "LMOD_CMD": str(LMOD), "HOME": str(top), "PATH": path},
        cwd=top,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return top / "modules/all"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A site that has published pytorch/24.11 and jax/26.06."""
    place = Place(tmp_path_factory.mktemp("site"))
    place.publish("pytorch-24.11", channel="production")
    place.publish("jax-26.06", channel="production")
    return place


def in_one_modulepath(place: Place, software: Path, *lines: str) -> str:
    """What LINES print where both trees are on MODULEPATH."""
    path = f"{software}:{modulepath(place, 'lmod')}"
    done = bash(place, "lmod", *lines, MODULEPATH=path)
    return done.stdout + done.stderr


@pytest.mark.parametrize("first", ["PyTorch/2.1.2 pytorch/24.11", "pytorch/24.11 PyTorch/2.1.2"])
def test_both_are_loaded_and_none_hides_the_other(place: Place, software: Path, first: str) -> None:
    said = in_one_modulepath(
        place,
        software,
        "env -0 >$HOME/before",
        f"module load OpenMPI Python {first}; module -t list 2>&1",
        "module unload pytorch; module -t list 2>&1 | sed s/^/then:/",
        "module purge; env -0 >$HOME/after",
    )
    listed = said.split()
    assert {"pytorch/24.11-r1", "PyTorch/2.1.2", "OpenMPI/4.1.5", "Python/3.11.5"} <= set(listed)
    assert "then:PyTorch/2.1.2" in listed
    assert not any(one.startswith("then:pytorch") for one in listed)
    home = place.top / "home"
    assert snapshot(home / "before") == snapshot(home / "after")


def test_two_images_replace_each_other_and_leave_the_software(place: Place, software: Path) -> None:
    said = in_one_modulepath(
        place, software, "module load PyTorch pytorch; module load jax; module -t list 2>&1"
    )
    listed = [word for word in said.split() if re.fullmatch(r"[\w-]+/\S+", word)]
    assert "jax/26.06-r1" in listed
    assert "PyTorch/2.1.2" in listed
    assert "pytorch/24.11-r1" not in listed


@pytest.mark.parametrize(("asked", "loaded"), [("pytorch", "pytorch/24.11-r1"), ("PyTorch", "PyTorch/2.1.2")])  # fmt: skip
def test_a_name_means_its_own_module(place: Place, software: Path, asked: str, loaded: str) -> None:
    said = in_one_modulepath(place, software, f"module load {asked}; module -t list 2>&1")
    assert said.split() == [loaded]


def test_spider_shows_both(place: Place, software: Path) -> None:
    said = in_one_modulepath(place, software, "module -t spider 2>&1")
    assert {"PyTorch/2.1.2", "pytorch/24.11-r1"} <= set(said.split())


def test_packages_of_theirs_are_told_before_a_launch(place: Place, software: Path) -> None:
    in_one_modulepath(place, software, "module load PyTorch pytorch; env -0 >$HOME/loaded")
    entries = (place.top / "home/loaded").read_text().split("\0")
    environ = dict(entry.split("=", 1) for entry in entries if "=" in entry)

    [note] = describe_foreign_packages(environ)
    assert "the loaded module PyTorch/2.1.2" in note
    assert note.endswith("module unload PyTorch/2.1.2")
