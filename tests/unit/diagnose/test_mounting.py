"""What a node says of how it mounts and reads an image, and what follows from it."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import make_site
from hpcstack.core.process import Completed, Runner
from hpcstack.core.progress import Progress
from hpcstack.diagnose.mounting import (
    LINE,
    MountSpeed,
    MountSpeeds,
    look_at_mounting,
    measure_mounting,
)
from hpcstack.render.template import read_data_file
from hpcstack.store.artifact import Artifact
from hpcstack.store.store import Store

SAID = (
    "squashfuse_ll 15 400 200000000\nsquashfuse 9 800 200000000\napptainer 155 500 "
    "200000000\nenroot\n"
)
ARTIFACT = Artifact(
    stack="pytorch-24.11", key="k1", sha256="0" * 64, size=5, platform="linux/amd64", engine="apptainer", lock_sha256="0" * 64,
    base="b:1", stand_in="", suite="0", facts={}, apt={}, pip={},
)  # fmt: skip


class Node(Runner):
    def __init__(self, said: str, status: int = 0) -> None:
        self.said, self.status, self.asked = said, status, list[list[str]]()

    def output(self, argv: object, **_: object) -> Completed:
        words = list(argv)  # type: ignore[call-overload]
        self.asked.append(words)
        return Completed(tuple(words), self.status, (), self.said)


def test_it_is_measured_with_an_image_of_the_store_on_a_node(tmp_path: Path) -> None:
    site, node = make_site(tmp_path), Node(SAID)
    assert measure_mounting(node, site, ["--nodelist=n1"], Progress()) is None and not node.asked, (
        "no image"
    )
    (tmp_path / "image").write_bytes(b"image")
    (tmp_path / "log").write_text("")
    sha = "6105d6cc76af400325e94d588ce511be5bfdbb73b437dc51eca43917d7a43e3d"
    put = Store(site.store).put(replace(ARTIFACT, sha256=sha), tmp_path / "image", tmp_path / "log")
    assert measure_mounting(node, site, [], Progress()) is None and not node.asked, (
        "no node was named"
    )
    found = measure_mounting(node, site, ["--nodelist=n1"], Progress())
    assert found == MountSpeeds(
        (
            MountSpeed("squashfuse_ll", 0.015, 500.0),
            MountSpeed("squashfuse", 0.009, 250.0),
            MountSpeed("apptainer", 0.155, 400.0),
        ),
        enroot=True,
    )
    assert node.asked[0][-2:] == [str(put.image), "8"]
    assert "--nodelist=n1" in node.asked[0]
    assert measure_mounting(node, site, ["--jobid", "7", "--overlap"], Progress()) is None, (
        "a job is at work there"
    )
    failed = measure_mounting(Node(SAID, 1), site, ["--nodelist=n1"], Progress())
    assert failed
    assert [one.status for one in look_at_mounting(failed, "login")] == ["SKIP"]
    assert "srun ended with 1" in next(look_at_mounting(failed, "login")).found


@pytest.mark.parametrize(
    ("programs", "enroot", "codes"),
    [
        (
            (("squashfuse_ll", 500.0), ("squashfuse", 250.0)),
            True,
            ["mounting", "mounting.squashfuse"],
        ),
        ((("squashfuse_ll", 500.0), ("squashfuse", 250.0)), False, ["mounting"]),
        (
            (("squashfuse_ll", 500.0), ("squashfuse", 450.0)),
            True,
            ["mounting"],
        ),  # a link to the other one, say
        ((("squashfuse", 450.0),), True, ["mounting", "mounting.one-thread"]),
        ((("apptainer", 450.0),), True, ["mounting"]),
        ((), True, ["mounting"]),
    ],
)
def test_only_a_difference_that_was_measured_is_a_warning(
    programs: tuple[tuple[str, float], ...], enroot: bool, codes: list[str]
) -> None:
    measured = MountSpeeds(tuple(MountSpeed(name, 0.01, rate) for name, rate in programs), enroot)
    assert [one.code for one in look_at_mounting(measured, "login")] == codes


def test_nothing_measured_nothing_said() -> None:
    assert list(look_at_mounting(None, "login")) == []


@pytest.mark.squashfs
def test_the_script_measures_on_this_machine(tmp_path: Path) -> None:
    """Really: an image is made, mounted and read by what is here; nothing is left mounted."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for number in range(9):
        (tree / f"{number} of\nmany").write_bytes(os.urandom(1 << 20))
    subprocess.run(
        ["mksquashfs", tree, tmp_path / "i.sqsh", "-quiet", "-no-progress"],
        check=True,
        capture_output=True,
    )
    argv = [
        "sh",
        "-c",
        read_data_file("launchers", "on-node/read-image.sh"),
        "read-image",
        str(tmp_path / "i.sqsh"),
        "4",
    ]
    (tmp_path / "tmp").mkdir()
    said = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TMPDIR": f"{tmp_path}/tmp"},
    )
    found = {one[1]: int(one[4]) for one in LINE.finditer(said.stdout)}
    if not shutil.which("squashfuse_ll") or not Path("/dev/fuse").exists():
        pytest.skip("no squashfuse_ll here")
    assert found["squashfuse_ll"] == 9 << 20, said
    assert not list((tmp_path / "tmp").iterdir())
