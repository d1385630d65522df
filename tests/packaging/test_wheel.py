"""What the built wheel holds: the data folders, both packages, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support.checkout import copy_checkout

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("wheel")
    checkout = copy_checkout(tmp_path_factory.mktemp("checkout"))
    argv = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(folder),
        str(checkout),
    ]
    version = {**os.environ, "SETUPTOOLS_SCM_PRETEND_VERSION": "0.1.0"}
    subprocess.run(argv, check=True, capture_output=True, env=version)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        return wheel.namelist()


def test_every_data_file_is_inside(names: list[str]) -> None:
    for folder in ("recipes", "images", "modules", "launchers", "facts"):
        for path in (REPO / folder).rglob("*"):
            if path.is_file():
                assert f"hpcstack/_data/{path.relative_to(REPO).as_posix()}" in names


def test_both_packages_are_inside_and_nothing_of_the_tests(names: list[str]) -> None:
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"hpcstack", "hpcstack_smoke"}
    assert "hpcstack_smoke/__main__.py" in names
    assert not any("golden" in name or "stand" in name.rpartition("/")[2] for name in names)
