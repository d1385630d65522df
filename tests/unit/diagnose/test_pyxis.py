"""Whether Pyxis mounts images, as plugstack.conf says it, and what that costs, as steps say it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from conftest import make_site
from hpcstack.core.process import Completed, Runner
from hpcstack.diagnose.mounting import MountSpeed, MountSpeeds
from hpcstack.diagnose.pyxis import look_at_pyxis, parse_pyxis_options
from hpcstack.store.artifact import Artifact
from hpcstack.store.store import Store

ARTIFACT = Artifact(
    stack="pytorch-24.11", key="k1", sha256="0" * 64, size=5, platform="linux/amd64", engine="apptainer", lock_sha256="0" * 64,
    base="b:1", stand_in="", suite="0", facts={}, apt={}, pip={},
)  # fmt: skip
MEASURED = MountSpeeds(
    (MountSpeed("squashfuse_ll", 0.02, 400.0), MountSpeed("squashfuse", 0.04, 200.0)), enroot=True
)


class Cluster(Runner):
    """scontrol names a plugstack.conf; srun runs what it is told, or does not."""

    def __init__(self, conf: Path, status: int = 0) -> None:
        self.conf, self.status, self.asked = conf, status, list[list[str]]()

    def output(self, argv: object, **_: object) -> Completed:
        words = list(argv)  # type: ignore[call-overload]
        self.asked.append(words)
        said = (
            f"PluginDir = /x\nPlugStackConfig         = {self.conf}\nPriority = 1\n"
            if words[0] == "scontrol"
            else ""
        )
        return Completed(tuple(words), self.status if words[0] == "srun" else 0, (), said)


@pytest.mark.parametrize(
    ("text", "mounts"),
    [
        ("required /usr/lib/slurm/spank_pyxis.so importer=/x use_squashfuse=1\n", True),
        ("optional spank_pyxis.so use_squashfuse=true runtime_path=/run/pyxis\n", True),
        ("required /usr/lib/slurm/spank_pyxis.so\n", False),
        ("required /usr/lib/slurm/spank_pyxis.so use_squashfuse=0\n", False),
        ("# required spank_pyxis.so use_squashfuse=1\nrequired spank_pyxis.so\n", False),
    ],
)
def test_what_plugstack_says(tmp_path: Path, text: str, mounts: bool) -> None:
    (tmp_path / "plugstack.conf").write_text(text)
    found = list(
        look_at_pyxis(Cluster(tmp_path / "plugstack.conf"), make_site(tmp_path), "login", [], None)
    )
    assert [one.code for one in found] == (["pyxis"] if mounts else ["pyxis", "pyxis.unpacks"])
    assert mounts == ("mounts images" in found[0].found)


def test_a_file_that_is_included_and_one_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/pyxis.conf").write_text("required spank_pyxis.so use_squashfuse=1\n")
    (tmp_path / "plugstack.conf").write_text(f"include {tmp_path}/d/*\n")
    assert parse_pyxis_options(Cluster(tmp_path / "plugstack.conf")) == "use_squashfuse=1"
    found = list(look_at_pyxis(Cluster(tmp_path / "none"), make_site(tmp_path), "login", [], None))
    assert [one.status for one in found] == ["OK"]
    assert "cannot be read" in found[0].found


def test_what_it_costs_is_measured_on_a_node(tmp_path: Path) -> None:
    (tmp_path / "plugstack.conf").write_text("required spank_pyxis.so\n")
    site = make_site(tmp_path)
    store = Store(site.store)
    (tmp_path / "image").write_bytes(b"image")
    (tmp_path / "log").write_text("")
    sha = "6105d6cc76af400325e94d588ce511be5bfdbb73b437dc51eca43917d7a43e3d"
    put = store.put(replace(ARTIFACT, sha256=sha), tmp_path / "image", tmp_path / "log")
    cluster = Cluster(tmp_path / "plugstack.conf")
    found = list(look_at_pyxis(cluster, site, "login", ["--nodelist=n1"], MEASURED))
    assert "GB took 0.0 s here, mounting the same 0.02 s" in found[1].found
    steps = [words for words in cluster.asked if words[0] == "srun"]
    assert len(steps) == 1
    assert f"--container-image={put.image}" in steps[0]
    assert all("--nodelist=n1" in words and "--nodes=1" in words for words in steps)
    silent = list(
        look_at_pyxis(
            Cluster(tmp_path / "plugstack.conf", 1), site, "login", ["--nodelist=n1"], MEASURED
        )
    )
    assert silent[1].found.endswith("is not set"), "a step that fails measures nothing"
