"""ci/gpu --part 0: what it keeps of questions that end, hang, fail, or have nothing to ask.

The questions themselves want a GPU; `--device cpu` tries most of them with torch alone.
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
import gpu_contact  # noqa: E402
from gpu_contact import Machine, Question, ask_all, hide  # noqa: E402

QUESTIONS = """\
import time


def ends(machine):
    gpu_contact.say("first")


def hangs(machine):
    gpu_contact.say("before")
    gpu_contact.run(["sleep", "100"], 200)


def fails(machine):
    gpu_contact.say("so far")
    raise RuntimeError("CUDA error 802")


def nothing(machine):
    raise gpu_contact.Nothing("no such thing here")
"""
NAMES = ("ends", "hangs", "fails", "nothing")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine, and questions of our own in place of the script's."""
    script = tmp_path / "questions.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT / 'ci')!r})\nimport gpu_contact\n\n\n{QUESTIONS}\n\n"
        f"gpu_contact.ASKED = {{{', '.join(f'{name!r}: {name}' for name in NAMES)}}}\n"
        "sys.exit(gpu_contact.main(sys.argv[1:]))\n"
    )
    monkeypatch.setattr(gpu_contact, "HERE", script)
    own = tuple(Question(name, 2, gpu_contact.ask_names, needs_gpu=False) for name in NAMES)
    monkeypatch.setattr(gpu_contact, "QUESTIONS", own)
    folder = tmp_path / "out"
    folder.mkdir()
    return Machine(folder, "cuda", "")


def test_what_was_seen_is_kept_however_a_question_ends(machine: Machine) -> None:
    answers = {one["name"]: one["status"] for one in ask_all(machine, [])}
    assert answers == {"ends": "ended", "hangs": "late", "fails": "status 1", "nothing": "SKIP"}
    assert (machine.folder / "hangs.txt").read_text().startswith("before\n$ sleep 100\n")
    assert "CUDA error 802" in (machine.folder / "fails.txt").read_text()
    assert (machine.folder / "nothing.txt").read_text() == "SKIP: no such thing here\n"
    lines = (machine.folder / "answers.jsonl").read_text().splitlines()
    assert [json.loads(line)["name"] for line in lines] == list(NAMES)
    with tarfile.open(machine.folder / "contact.tar.gz") as archive:
        assert {"ends.txt", "hangs.txt", "answers.jsonl"} <= set(archive.getnames())


def test_what_there_is_no_time_for_is_said(machine: Machine) -> None:
    answers = ask_all(machine, [], seconds=1)
    assert {one["status"] for one in answers} == {"LEFT OUT"}


def test_a_run_that_is_killed_has_kept_what_it_saw(tmp_path: Path) -> None:
    out = tmp_path / "out"
    argv = [str(ROOT / "ci/gpu"), str(out), "--part", "0", "--only", "names"]
    child = subprocess.Popen(
        argv, env={**os.environ, "PYTHON": sys.executable}, start_new_session=True
    )
    text = out / "0/names.txt"
    until = time.monotonic() + 30
    while not (text.exists() and "getent hosts" in text.read_text()):
        assert time.monotonic() < until
        time.sleep(0.02)
    child.kill()
    child.wait()
    assert "$ getent hosts" in text.read_text()


def test_without_a_gpu_nothing_is_asked_of_one(tmp_path: Path) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a GPU here")
    out = tmp_path / "out"
    done = subprocess.run(
        [ROOT / "ci/gpu", out, "--part", "0"], capture_output=True, text=True, timeout=100,
        env={**os.environ, "PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = (out / "0/answers.jsonl").read_text().splitlines()
    statuses = {one["name"]: one["status"] for one in map(json.loads, lines)}
    assert len(statuses) == 12
    assert set(statuses.values()) == {"SKIP"}, "also of `names`: torch sees no GPU"
    assert "It judges nothing" in done.stdout


def test_what_names_a_board_is_not_kept() -> None:
    text = (
        "    Serial Number                         : 1650522000001\n"
        "    GPU UUID                              : GPU-0aaf5eb5-6e4f-0000-0000-000000000000\n"
        "    GPU PDI                               : 0x1234567890abcdef\n"
        "        Chassis Serial Number             : 1234\n"
        "GPU 0: NVIDIA H200 (UUID: GPU-0aaf5eb5-6e4f-0000-0000-000000000000)\n"
        "    Product Name                          : NVIDIA H200\n"
    )
    kept = hide(text)
    for secret in ("1650522000001", "0aaf5eb5", "0x1234567890abcdef", "1234\n"):
        assert secret not in kept
    assert "Product Name                          : NVIDIA H200" in kept
