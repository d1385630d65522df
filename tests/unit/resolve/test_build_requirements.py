"""What source distributions are built with, as images/build_requirements.py finds out by the pip
that it has.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcstack.core import data
from hpcstack.resolve.answers import read_build_requirements
from support.index import add_sdist, add_wheel, serve_index

# A backend that brings itself: no test here needs one from an index.
BACKEND = """
import os


def get_requires_for_build_wheel(settings=None):
    return os.environ["WANTED"].split()


def prepare_metadata_for_build_wheel(folder, settings=None):
    os.makedirs(folder + "/NAME-1.0.dist-info")
    with open(folder + "/NAME-1.0.dist-info/METADATA", "w") as file:
        file.write("Metadata-Version: 2.1\\nName: NAME\\nVersion: 1.0\\n")
    return "NAME-1.0.dist-info"
"""
OWN = 'build-backend = "backend"\nbackend-path = ["."]\n'


def project(folder: Path, name: str, requires: str) -> None:
    pyproject = f"[build-system]\nrequires = [{requires}]\n{OWN}"
    add_sdist(
        folder,
        name,
        "1.0",
        {"pyproject.toml": pyproject, "backend.py": BACKEND.replace("NAME", name)},
    )


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "index"
    add_wheel(folder, "tool", "2.0", {"tool.py": ""}, requires=["below"])
    add_wheel(folder, "below", "5.1", {"below.py": ""})
    add_wheel(folder, "asked", "1.5", {"asked.py": ""})
    project(folder, "plain", '"tool"')
    project(folder, "nothing", "")
    project(folder, "missing", '"tool", "nowhere"')
    project(folder, "option", '"--index-url=https://attack.invalid/simple"')
    with serve_index(folder) as url:
        # Its page is there only now: it names the server's own address.
        project(folder, "address", f'"tool @ {url}/tool/tool-2.0-py3-none-any.whl"')
        (folder / "simple/address/index.html").write_text(
            '<a href="address-1.0.tar.gz">address-1.0.tar.gz</a>'
        )
        yield url


def find(tmp_path: Path, index: str, *names: str, wanted: str = "") -> dict[str, Any]:
    """What the script answers of the source distributions NAMES, whose backends want WANTED."""
    rows = [
        {
            "metadata": {"name": name, "version": "1.0"},
            "download_info": {"url": f"{index}/{name}/{name}-1.0.tar.gz", "archive_info": {}},
        }
        for name in names
    ]
    report, answer, of_base = (
        tmp_path / "report.json",
        tmp_path / "answer.json",
        tmp_path / "of-base",
    )
    report.write_text(json.dumps({"install": rows}))
    of_base.mkdir()
    script = str(data.find_data_folder("images") / "build_requirements.py")
    own = {
        "PIP_INDEX_URL": index,
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_CACHE_DIR": "1",
        "WANTED": wanted,
    }
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **own}
    argv = [sys.executable, script, str(report), str(of_base), str(tmp_path / "work"), str(answer)]
    subprocess.run(argv, check=True, env=env, capture_output=True)
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


def versions(found: dict[str, Any]) -> list[str]:
    read = read_build_requirements(json.dumps(found))
    assert all(hash_.startswith("sha256:") for package in read.packages for hash_ in package.hashes)
    return [f"{package.name} {package.version}" for package in read.packages]


def test_what_a_project_names_and_what_that_needs(tmp_path: Path, index: str) -> None:
    assert versions(find(tmp_path, index, "plain")) == ["below 5.1", "tool 2.0"]


def test_what_its_backend_asks_for(tmp_path: Path, index: str) -> None:
    assert versions(find(tmp_path, index, "plain", wanted="asked")) == [
        "asked 1.5",
        "below 5.1",
        "tool 2.0",
    ]


def test_a_project_that_needs_nothing(tmp_path: Path, index: str) -> None:
    assert find(tmp_path, index, "nothing") == {"install": [], "open": {}}


@pytest.mark.parametrize("name", ["missing", "address"])
def test_what_cannot_be_known_is_said_and_hides_no_other(
    tmp_path: Path, index: str, name: str
) -> None:
    found = find(tmp_path, index, name, "plain")
    assert list(found["open"]) == [f"{name} 1.0"]
    assert found["open"][f"{name} 1.0"]
    assert versions(found) == ["below 5.1", "tool 2.0"]


def test_a_projects_words_are_no_options_of_pip(tmp_path: Path, index: str) -> None:
    found = find(tmp_path, index, "option")
    assert list(found["open"]) == ["option 1.0"]
    assert not found["install"]
