"""ci/gpu: what it makes of steps that fail, hang, or leave torn files. The steps themselves need a
GPU, and say SKIP without one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "ci"))
import gpu_steps  # noqa: E402
import one_gpu  # noqa: E402
from one_gpu import Kit, Step  # noqa: E402


def make_kit(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Kit:
    """A kit whose part A is one step, which runs SCRIPT."""
    (folder / "ci").mkdir()
    (folder / "ci/gpu_steps.py").write_text(script)
    monkeypatch.setattr(one_gpu, "HERE", folder / "ci")
    monkeypatch.setitem(one_gpu.PARTS, "A", (Step("texts", 5),))
    out = folder / "out"
    out.mkdir()
    return Kit(out, "")


def test_a_step_that_hangs_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '100'])\n"
        "open(sys.argv[2] + '/pid', 'w').write(str(child.pid))\n"
        "time.sleep(100)\n"
    )
    kit = make_kit(tmp_path, monkeypatch, script)
    monkeypatch.setitem(one_gpu.PARTS, "A", (Step("texts", 2),))
    began = time.monotonic()
    assert not kit.run_part("A")
    assert time.monotonic() - began < 20
    (row,) = kit.found["parts"]["A"]["texts"]["rows"]
    assert (row["status"], row["measured"]) == ("ERROR", "it was ended after its 2 s")
    pid = int((tmp_path / "out/A/texts/pid").read_text())
    # It was sent KILL; the kernel takes it away a moment later
    until = time.monotonic() + 30
    while is_running(pid):
        assert time.monotonic() < until, "what the step had started still runs"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def test_a_torn_document_loses_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        "import sys\n"
        "open(sys.argv[2] + '/a.json', 'w').write('[1, 2]')\n"
        "open(sys.argv[2] + '/b.json', 'w').write('{\"rows\": [{\"sta')\n"
        'open(sys.argv[2] + \'/c.json\', \'w\').write(\'{"rows": [{"status": "PASS", "code": "x"}]}\')\n'
    )
    kit = make_kit(tmp_path, monkeypatch, script)
    assert not kit.run_part("A")
    found = {row["code"]: row["status"] for row in kit.found["parts"]["A"]["texts"]["rows"]}
    assert found == {"b.json": "ERROR", "x": "PASS"}


def test_a_step_that_leaves_nothing_is_an_error_and_the_report_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = make_kit(tmp_path, monkeypatch, "raise SystemExit(3)")
    assert not kit.run_part("A")
    report = json.loads((tmp_path / "out/report.json").read_text())
    (row,) = report["parts"]["A"]["texts"]["rows"]
    assert row["measured"] == "it ended with 3 and left no result"
    with tarfile.open(tmp_path / "out/results.tar.gz") as archive:
        assert {"report.json", "A/texts/said.log"} <= set(archive.getnames())


@pytest.mark.parametrize(("got", "becomes"), [("FAIL", "PASS"), ("PASS", "FAIL"), ("SKIP", "SKIP")])
def test_a_planted_fault_must_be_found(got: str, becomes: str) -> None:
    rows = [{"status": got, "code": "burn.compute", "measured": "m"}]
    (row,) = one_gpu.hold_to({"burn.compute": "FAIL"}, rows)
    assert row["status"] == becomes


def test_without_a_gpu_nothing_is_green_and_no_part_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts D and E whole, and the latency of A: each step says SKIP, with its reason."""
    if one_gpu.has_gpu():
        pytest.skip("there is a GPU here")
    done = subprocess.run(
        [ROOT / "ci/gpu", tmp_path / "out", "--part", "D,E"], capture_output=True, text=True, timeout=100,
        env={**os.environ, "PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    parts = json.loads((tmp_path / "out/report.json").read_text())["parts"]
    rows = [row for part in parts.values() for step in part.values() for row in step["rows"]]
    assert len(rows) == 9
    assert {row["status"] for row in rows} == {"SKIP"}
    for name in ("latency_at_rest", "texts", "transports", "build_nccl"):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.setenv("HPCSTACK_NCCL", str(tmp_path))
        assert gpu_steps.main(name, folder) == 0
        (row,) = json.loads((folder / "rows.json").read_text())["rows"]
        assert (row["status"], row["measured"]) == ("SKIP", "no nvidia-smi here")


def test_wrong_words_and_the_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert one_gpu.main([]) == one_gpu.main([str(tmp_path / "x"), "--part", "Z"]) == one_gpu.USAGE
    assert one_gpu.main([str(tmp_path)]) == one_gpu.USAGE  # not a folder of ours
    assert one_gpu.main(["--list"]) == 0
    listed = capsys.readouterr().out
    for part, steps in one_gpu.PARTS.items():
        assert f"{part}: {steps[0].name} (" in listed
        assert sum(step.seconds for step in steps) <= 600
    assert sum(one_gpu.BITS.values()) < one_gpu.USAGE
