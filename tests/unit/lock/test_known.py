"""A laptop with no network, no Slurm, no Apptainer and no site.yaml: what works there, and what it
says.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import make_site
from hpcstack.build.request import request_build
from hpcstack.core import data
from hpcstack.core.errors import InputError, RegistryError
from hpcstack.core.process import Runner
from hpcstack.lock.check import find_staleness
from hpcstack.lock.known import list_lacking, make_known_lock
from hpcstack.preview import render_stack_files
from hpcstack.recipe.catalog import Catalog
from hpcstack.render.readback import check_definition
from hpcstack.resolve.make_lock import lock_to_look_at

CATALOG = Catalog([data.find_data_folder("recipes")])
HPCSTACK = Path(sys.executable).parent / "hpcstack"
DEFINITIONS = (
    "apptainer.def",
    "Dockerfile",
    "enroot.sh",
    "modulefile.lua",
    "modulefile.tcl",
    "srun.sh",
    "sbatch.sh",
)


def laptop(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """hpcstack with nothing on PATH and, where this machine lets us, in a network namespace without
    a network.
    """
    apart = ["unshare", "--user", "--map-current-user", "--net"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        apart = []
    words = (*words,) if apart else ("--site", str(home / "site.yaml"), *words)
    (home / "site.yaml").write_text(
        "apiVersion: hpcstack/site/v1\nregistries: {nvcr.io: {mirror: '127.0.0.1:9', "
        "plain_http: true}}\n"
    )
    environment = {"HOME": str(home), "PATH": "/nonexistent", "LANG": "C.UTF-8"}
    argv = [
        *apart,
        "env",
        "-i",
        *(f"{name}={value}" for name, value in environment.items()),
        str(HPCSTACK),
        *words,
    ]
    return subprocess.run(
        argv, capture_output=True, text=True, check=False, cwd=home, env=dict(os.environ)
    )


@pytest.mark.parametrize(
    "words",
    [
        ("list",), ("show", "pytorch-24.11"), ("lint", "--all"), ("schema",), ("schema", "--site"), ("site", "init"),
        ("plan", "--params", "7e9", "--gpus", "h100:8"), ("render", "pytorch-24.11", "-o", "out"),
        ("render", "miniforge-26.3", "--offline"), ("status",), ("images",), ("show", "--site"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_works_on_a_laptop(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = laptop(tmp_path, *words)
    assert done.returncode == 0, done.stderr


def test_render_says_what_it_could_not_look_up(tmp_path: Path) -> None:
    done = laptop(tmp_path, "render", "pytorch-24.11", "-o", "out", "--json")
    assert done.returncode == 0 and "cannot be reached" in done.stderr, done.stderr
    said = json.loads(done.stdout)["not_looked_up"]
    assert any("digest of nvcr.io/nvidia/pytorch:24.11-py3" in line for line in said)
    assert any("CUDA_VERSION" in line and "entrypoint" in line for line in said)
    for name in DEFINITIONS:
        text = (tmp_path / "out" / name).read_text()
        assert all(line in text for line in said), name
    assert (
        "From: nvcr.io/nvidia/pytorch:24.11-py3\n" in (tmp_path / "out/apptainer.def").read_text()
    )
    plain = laptop(tmp_path, "render", "pytorch-24.11", "--offline").stdout
    assert "NOT LOOKED UP" in plain
    assert "hpcstack build never takes this text" in plain


def test_doctor_does_not_fail_a_store_that_nobody_has_made(tmp_path: Path) -> None:
    found = [
        row
        for row in json.loads(laptop(tmp_path, "doctor", "--json").stdout)["findings"]
        if "store" in str(row)
    ]
    assert found and not any(row["status"] == "FAIL" for row in found), found


@pytest.mark.parametrize("name", CATALOG.names())
def test_every_recipe_renders_without_a_lock(tmp_path: Path, name: str) -> None:
    stack, site = CATALOG.find(name).stack, make_site(tmp_path)
    lock = make_known_lock(stack)
    for platform in stack.base.platforms:
        files = render_stack_files(stack, lock, site, platform)
        check_definition(stack, lock, platform, files["apptainer.def"])
        assert set(DEFINITIONS) <= set(files)
        assert "sha256:0000" not in "".join(files.values())
        assert len(list_lacking(stack, platform)) >= 3


def test_such_a_text_is_never_built_nor_kept(tmp_path: Path) -> None:
    recipe, site = CATALOG.find("pytorch-24.11"), make_site(tmp_path)

    class Silent:
        def look_up(self, _: object) -> object:
            raise RegistryError("nobody answers")

    said: list[str] = []
    lock = lock_to_look_at(recipe, site, lambda: Silent(), said.append)  # type: ignore[arg-type,return-value]
    assert lock.not_looked_up
    assert said == ["nobody answers"]
    with pytest.raises(InputError, match="no registry has said"):
        request_build(recipe, lock, site, Runner())
    assert "no registry has said what its base is" in find_staleness(recipe.stack, lock)
    assert not site.lock_dir.exists()
    done = laptop(tmp_path, "build", "pytorch-24.11")
    assert done.returncode == 5
    assert not list(tmp_path.rglob("*.sqsh"))


def test_a_wrapper_named_python_says_how_to_have_it(tmp_path: Path) -> None:
    (tmp_path / "a-1.yaml").write_text(
        "apiVersion: hpcstack/v1\nname: a\nversion: '1'\nsummary: s\nbase: {image: "
        "'docker.io/library/debian:12'}\n"
        "module: {commands: [python]}\n"
    )
    with pytest.raises(InputError, match=r"module: \{python: true\}"):
        Catalog([tmp_path]).find("a-1")
