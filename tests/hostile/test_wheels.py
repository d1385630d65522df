"""Wheels that somebody made to reach out of the environment that they are installed in.

`--with` and `project build` have the uv that hpcstack brings install them (in-image/project.sh).
"""

from __future__ import annotations

import base64
import hashlib
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hpcstack.core.errors import BuildError
from hpcstack.core.process import Runner
from hpcstack.core.progress import Progress
from hpcstack.project.inside import find_uv
from hpcstack.project.packed import pack_installed

MODULE = {"evil/__init__.py": "def f(): print('ran')\n"}
SCRIPTS = "[console_scripts]\n"
REFUSED, LEFT_OUT = "refused", "left out"
# {what it tries: (its files, its entry points, links {name: target}, what becomes of it)}
WHEELS: dict[str, tuple[dict[str, str], str, dict[str, str], str]] = {
    "a script out of bin": (MODULE, f"{SCRIPTS}../../../out = evil:f\n", {}, REFUSED),
    "a script at a path": (MODULE, f"{SCRIPTS}TOP/out = evil:f\n", {}, REFUSED),
    "code in an entry point": (
        MODULE,
        f"{SCRIPTS}ok = evil:f();import os;os.system('touch TOP/out')#\n",
        {},
        REFUSED,
    ),
    "a file above": ({"../../../../out": "x", **MODULE}, "", {}, LEFT_OUT),
    "a file at a path": ({"TOP/out": "x", **MODULE}, "", {}, LEFT_OUT),
    "data above": ({"w-1.0.data/data/../../../../out": "x", **MODULE}, "", {}, LEFT_OUT),
    "a script of data above": ({"w-1.0.data/scripts/../../../out": "x"}, "", {}, LEFT_OUT),
    "a header above": ({"w-1.0.data/headers/../../../../out": "x"}, "", {}, LEFT_OUT),
    "the environment's python": (
        {"w-1.0.data/data/bin/python3": "#!/bin/sh\necho evil\n"},
        "",
        {},
        REFUSED,
    ),
    "a link out": (MODULE, "", {"lib": "TOP"}, LEFT_OUT),
}


def make_wheel(folder: Path, what: str) -> Path:
    files, entries, links, _ = WHEELS[what]
    info = "w-1.0.dist-info"
    texts = {name.replace("TOP", str(folder)): text for name, text in files.items()}
    texts[f"{info}/METADATA"] = "Metadata-Version: 2.1\nName: w\nVersion: 1.0\n"
    texts[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    if entries:
        texts[f"{info}/entry_points.txt"] = entries.replace("TOP", str(folder))
    rows = []
    for name, text in texts.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        rows.append(f"{name},sha256={digest.decode()},{len(text)}\n")

    path = folder / "w-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, target in links.items():
            entry = zipfile.ZipInfo(name)
            entry.create_system = 3  # Unix, which has links
            entry.external_attr = (stat.S_IFLNK | 0o777) << 16
            wheel.writestr(entry, target.replace("TOP", str(folder)))
        for name, text in texts.items():
            wheel.writestr(name, text)
        wheel.writestr(f"{info}/RECORD", "".join([*rows, f"{info}/RECORD,,\n"]))
    return path


def list_outside(top: Path, environment: Path) -> set[str]:
    return {str(path) for path in top.rglob("*") if not path.is_relative_to(environment)}


@pytest.mark.parametrize("what", WHEELS)
def test_a_wheel_reaches_nothing_but_its_environment(tmp_path: Path, what: str) -> None:
    environment = tmp_path / "a/b/environment"
    venv = [sys.executable, "-m", "venv", "--without-pip", str(environment)]
    subprocess.run(venv, check=True)
    wheel = make_wheel(tmp_path, what)
    before = list_outside(tmp_path, environment)

    install = [
        *(str(find_uv()), "pip", "install", "--offline", "--no-index", "--no-cache", "--no-config"),
        *("--python", str(environment / "bin/python3"), "--no-deps", "--link-mode", "copy"),
        str(wheel),
    ]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == (WHEELS[what][3] == REFUSED), done.stderr
    assert list_outside(tmp_path, environment) == before
    python = subprocess.run(
        [str(environment / "bin/python3"), "-c", "print(1)"], capture_output=True, text=True
    )
    assert python.stdout == "1\n"
    ways_out = [
        path
        for path in environment.rglob("*")
        if path.is_symlink() and path.resolve().is_relative_to(tmp_path)
        if not path.resolve().is_relative_to(environment)
    ]
    assert ways_out == []


def test_what_builds_a_package_cannot_have_another_folder_packed(tmp_path: Path) -> None:
    secret = tmp_path / "home"
    secret.mkdir()
    (secret / "id_ed25519").write_text("a key")
    tree = tmp_path / "tree"
    tree.symlink_to(secret)
    with pytest.raises(BuildError, match="has replaced the folder"):
        pack_installed(tree, tmp_path / "packed.sqsh", Runner(), Progress())
    assert not (tmp_path / "packed.sqsh").exists()
