"""A project's own package, live: where its modules lie, its programs and its metadata."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcstack.project.own_package import describe_own_packages

PROJECT = """\
[project]
name = "my-pkg"
version = "1.2"
[project.scripts]
my-run = "mine.main:go"
bad-one = "not an object"
[project.entry-points."mine.plugins"]
first = "mine.main:go"
"""
BACKENDS = {
    "nothing said, src": ("", ["src/mine"], "src"),
    "nothing said, flat": ("", ["mine"], "."),
    "setuptools package-dir": (
        '[tool.setuptools.package-dir]\n"" = "lib"\n', ["lib/mine", "src/other"], "lib",
    ),
    "setuptools find": (
        '[tool.setuptools.packages.find]\nwhere = ["python"]\n', ["python/mine"], "python",
    ),
    "hatch": ('[tool.hatch.build.targets.wheel]\npackages = ["code/mine"]\n', ["code/mine"], "code"),
    "poetry": ('[[tool.poetry.packages]]\ninclude = "mine"\nfrom = "lib"\n', ["lib/mine"], "lib"),
    "pdm": ('[tool.pdm.build]\npackage-dir = "lib"\n', ["lib/mine"], "lib"),
    "uv, flat": ('[tool.uv.build-backend]\nmodule-root = ""\n', ["mine", "src/x"], "."),
}  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_its_modules_are_found_without_being_told(tmp_path: Path, backend: str) -> None:
    settings, folders, root = BACKENDS[backend]
    (tmp_path / "pyproject.toml").write_text(PROJECT + settings)
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    assert describe_own_packages([tmp_path]).roots == (tmp_path / root,)


def test_its_programs_and_metadata_work(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    package = folder / "src/mine"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    (package / "__init__.py").touch()
    (package / "main.py").write_text("def go():\n    print('gone')\n    return 3\n")
    own = describe_own_packages([folder])
    environ = {"XDG_DATA_HOME": str(tmp_path / "share")}
    own.write(environ)
    own.write(environ)  # a second launch finds it
    place = own.find_place(environ)
    assert not (place / "bin/bad-one").exists()

    (root,) = own.roots
    path = f"{place / 'site'}:{root}"
    done = subprocess.run(
        [sys.executable, place / "bin/my-run"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "gone\n"), done.stderr
    assert os.access(place / "bin/my-run", os.X_OK)

    (found,) = importlib.metadata.distributions(path=[str(place / "site")])
    assert (found.metadata["Name"], found.version) == ("my-pkg", "1.2")
    plugins = found.entry_points.select(group="mine.plugins")
    assert [one.value for one in plugins] == ["mine.main:go"]


def test_a_folder_without_a_pyproject_has_modules_alone(tmp_path: Path) -> None:
    own = describe_own_packages([tmp_path])
    assert own.roots == (tmp_path,)
    assert not [name for name in own.files if name.startswith("bin/")]


@pytest.mark.parametrize(
    "text",
    [
        "project = 3\n",
        "[project]\nname = 'a/../../b'\n",
        "[project]\nname = 'a'\nversion = '1/2'\nscripts = 3\n",
        "[project]\nname = 'a'\n[project.scripts]\n'..' = 'a:b'\n'x/y' = 'a:b'\n",
        "[tool.setuptools]\npackage-dir = 'x'\npackages = 3\n",
        "[tool]\nhatch = 1\npoetry = 2\npdm = 3\nuv = 4\n",
    ],
)
def test_odd_settings_are_no_reason_to_stop(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    own = describe_own_packages([tmp_path])
    assert own.roots == (tmp_path,)
    own.write({"XDG_DATA_HOME": str(tmp_path / "share")})
    written = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*")}
    assert written == {"pyproject.toml", "share"}
