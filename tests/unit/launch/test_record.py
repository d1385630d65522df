"""What is written down of a launch, and what is not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from hpcstack.core import data
from hpcstack.core.errors import InputError
from hpcstack.launch import record
from hpcstack.launch.plan import Plan
from hpcstack.launch.request import LaunchRequest
from hpcstack.launch.variables import ValueOrigin, Variable
from hpcstack.runtimes import Part
from hpcstack.slurm.state import UNKNOWN, JobState
from hpcstack.store.artifact import Artifact

ARTIFACT = Artifact(
    stack="pytorch-24.11", key="k", sha256="0" * 64, size=1, platform="linux/amd64", engine="apptainer", lock_sha256="0" * 64,
    base="b:1", stand_in="", suite="0", facts={}, apt={}, pip={}, folder="/store/images/k",
)  # fmt: skip
REQUEST = LaunchRequest(("true",), mode="plain", home=True)
PLAN = Plan((Part(("srun", "true")),), (), REQUEST, "apptainer", "named")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("HPCSTACK_RUN", raising=False)
    return tmp_path / "hpcstack" / "launches"


def begin(*settings: Variable) -> Path:
    return record.begin_record(PLAN, ARTIFACT, "the image built last", list(settings), {})


@pytest.mark.parametrize(
    ("name", "value", "hidden"),
    [
        ("HF_TOKEN", "hf_x", True), ("WANDB_API_KEY", "0dd-0ne", True), ("PGPASSWORD", "0dd-0ne", True), ("AWS_SECRET", "0dd-0ne", True),
        ("JUPYTER_TOKEN", "0dd-0ne", True), ("http_proxy", "http://jo:secret@proxy:3128", True),
        ("PIP_INDEX_URL", "https://jo:secret@pypi.example/simple", True), ("http_proxy", "http://proxy:3128", False),
        ("NCCL_DEBUG", "INFO", False), ("KEYBOARD", "us", False),
    ],
)  # fmt: skip
def test_secrets_are_not_kept(name: str, value: str, hidden: bool) -> None:
    folder = begin(Variable(name, value, ValueOrigin.USER))
    assert (value in (folder / record.FILE).read_text()) is not hidden
    assert folder.stat().st_mode & 0o077 == 0


def test_a_launch_is_found_by_job_step_and_folder(state: Path) -> None:
    first, second = begin(), begin()
    (first / record.BEGAN).write_text("7\n0\nnode[1-2]\n")  # as on-node/began.sh writes it
    record.write_end(first, JobState("CANCELLED", 143, "Ctrl-C"))
    assert record.find_launch("7").folder == first
    assert record.find_launch("7.0").state == JobState("CANCELLED", 143, "Ctrl-C")
    assert record.find_launch("").folder == second
    assert record.find_launch(second.name).state == UNKNOWN
    with pytest.raises(InputError, match="no launch 9"):
        record.find_launch("9")


def test_the_prolog_of_a_job_that_waits_outlives_the_installation_it_came_from(
    state: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed = tmp_path / "venv/launchers"
    (installed / "on-node").mkdir(parents=True)
    source = data.find_data_folder("launchers") / "on-node/began.sh"
    shutil.copy(source, installed / "on-node")
    monkeypatch.setattr(data, "find_data_folder", lambda name: installed)

    prolog = Path(record.keep_prolog())

    shutil.rmtree(installed)
    assert prolog.is_relative_to(state.parent)
    assert prolog.read_text() == source.read_text()
    launch = begin()
    environ = {
        "PATH": os.environ["PATH"],
        "HPCSTACK_RUN": str(launch),
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
    }
    subprocess.run([prolog], env=environ, check=True)
    assert record.find_launch("7").folder == launch


def test_where_nothing_can_be_kept_srun_runs_the_installed_prolog(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert record.keep_prolog() == str(data.find_data_folder("launchers") / "on-node/began.sh")


def test_what_is_half_made_is_not_seen_and_what_is_damaged_is_passed_over(state: Path) -> None:
    whole = begin()
    (state / ".20261121T000000.0Z-part").mkdir()
    (state / "20261121T000000.0Z-torn").mkdir()
    (state / "20261121T000000.0Z-torn" / record.FILE).write_text('{"stack":')
    assert [launch.folder for launch in record.read_launches()] == [whole]


def test_a_home_that_is_full_keeps_no_launch_from_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """researcher 6: "no space left (.../store), name another store in site.yaml", and nothing ran."""
    from conftest import make_site
    from hpcstack.core.process import Runner
    from hpcstack.launch.run import PlannedLaunch

    (tmp_path / "full").write_text("a file, where a folder is wanted")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "full"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    here = Plan((Part(("sh", "-c", "exit 3")),), (), REQUEST, "local", "named")
    launch = PlannedLaunch(here, ARTIFACT, "why", make_site(tmp_path), Runner())
    assert launch.run()[0] == 3
    said = capfd.readouterr().err
    assert f"{tmp_path}/full/hpcstack cannot be written" in said
    assert f"is kept in {tmp_path}/hpcstack-launches-" in said
    assert list(tmp_path.glob("hpcstack-launches-*/2*/launch.json"))


def test_of_launches_that_nobody_asks_about_nearly_nothing_is_read(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """researcher 16: 1,482 file calls of `jobs -n 1` at 163 launches, 2,966 of `logs`."""
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(record, "find_this_terminal", lambda: "elsewhere")
        others = [begin() for _ in range(40)]
    mine = begin()
    for number, folder in enumerate([*others, mine]):
        record.write_submitted(folder, str(number))
    read: list[Path] = []
    really_read = record.read_launch

    def read_launch(folder: Path) -> record.Launch:
        read.append(folder)
        return really_read(folder)

    monkeypatch.setattr(record, "read_launch", read_launch)

    assert record.find_launch("7").folder == others[7]
    assert record.find_launch("").folder == record.find_failed().folder == mine
    assert next(record.read_launches()).folder == mine
    assert read == [others[7], mine, mine, mine]


def test_the_oldest_go(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "KEPT", 2)
    made = [begin() for _ in range(4)]
    assert [launch.folder for launch in record.read_launches()] == made[:1:-1]


def test_the_record_says_what_ran() -> None:
    document = json.loads((begin() / record.FILE).read_text())
    assert document["argv"] == ["srun", "true"]
    assert document["image_sha256"] == "0" * 64
    assert document["staged"] == "none"


def test_why_knows_what_added_packages_put_where() -> None:
    """researcher 11: `why PYTHONPATH` said that it was not set."""
    document = {"with": ["einops"], "environment": []}
    launch = record.Launch(Path(), "s", "", (), "pyxis", "plain", "", document=document)
    found = record.explain_added("PYTHONPATH", launch, None)
    assert found
    assert found["value"] == "the image's:/opt/hpcstack/with/lib/python3*/site-packages"
    mine = {"name": "PYTHONPATH", "value": "/mine", "origin": "the user", "why": ""}
    found = record.explain_added("PYTHONPATH", launch, mine)
    assert found
    assert found["value"] == "/mine:/opt/hpcstack/with/lib/python3*/site-packages"
    assert found["why"].endswith("behind what the user says")
    found = record.explain_added("PATH", launch, None)
    assert found
    assert found["value"] == "/opt/hpcstack/with/bin:the image's"
    assert record.explain_added("FOO", launch, None) is None
    alone = record.Launch(Path(), "s", "", (), "pyxis", "plain", "", document={"with": []})
    assert record.explain_added("PYTHONPATH", alone, mine) == mine
