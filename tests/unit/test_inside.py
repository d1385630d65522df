"""Whether a command is in an image, asked of a real squashfs."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hpcstack.launch.inside import missing
from hpcstack.process import Runner
from hpcstack.store import Artifact

ARTIFACT = Artifact(
    stack="s-1", key="k", sha256="0", size=1, platform="linux/amd64", engine="apptainer", lock_sha256="0",
    base="b:1", stand_in="", suite="0", facts={}, apt={}, pip={},
    environment={"PATH": "/usr/local/cuda/bin:/opt/loop/bin:/bin"},
)  # fmt: skip
pytestmark = pytest.mark.squashfs


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    tree = tmp_path / "tree"
    for folder in ("usr/local/cuda-12.6/bin", "usr/bin", "opt", "etc/alternatives"):
        (tree / folder).mkdir(parents=True)
    (tree / "usr/local/cuda-12.6/bin/nvcc").write_text("")
    (tree / "usr/bin/env").write_text("")
    (tree / "usr/local/cuda").symlink_to("/etc/alternatives/cuda")
    (tree / "etc/alternatives/cuda").symlink_to("/usr/local/cuda-12.6")
    (tree / "bin").symlink_to("usr/bin")
    (tree / "opt/loop").symlink_to("loop")
    subprocess.run(["mksquashfs", str(tree), str(tmp_path / "image.sqsh"), "-quiet", "-no-progress"], check=True)
    return replace(ARTIFACT, folder=str(tmp_path))


@pytest.mark.parametrize("command", ["nvcc", "env", "/usr/local/cuda/bin/nvcc", "/bin/env", "/usr/bin/env"])
def test_a_command_behind_links_is_there(artifact: Artifact, tmp_path: Path, command: str) -> None:
    assert missing(artifact, (command,), tmp_path, (), Runner()) == ""


@pytest.mark.parametrize("command", ["nvc", "/usr/local/cuda/bin/none", "/opt/loop/x", "/nothing/at/all"])
def test_what_is_not_there_is_said(artifact: Artifact, tmp_path: Path, command: str) -> None:
    said = missing(artifact, (command,), tmp_path, (), Runner())
    assert command in said and ("no command" in said or "neither in the image" in said)


def test_what_lies_in_a_mount_or_the_folder_is_looked_at_there(artifact: Artifact, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    assert missing(artifact, ("train.py",), tmp_path, (), Runner()) == ""
    assert "no such file" in missing(artifact, ("other.py",), tmp_path, (), Runner())
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/run").write_text("")
    mounts = (f"{tmp_path}/tools:/data/tools",)
    assert missing(artifact, ("/data/tools/run",), tmp_path, mounts, Runner()) == ""
    assert f"({tmp_path}/tools/none)" in missing(artifact, ("/data/tools/none",), tmp_path, mounts, Runner())
    assert "no such file" in missing(artifact, ("./none",), tmp_path, (), Runner())
