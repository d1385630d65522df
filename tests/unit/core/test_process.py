"""The runner: logs, tails, statuses, and nothing left behind when it is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcstack.core.errors import MissingToolError
from hpcstack.core.process import Runner


def test_a_missing_tool_names_its_package() -> None:
    with pytest.raises(MissingToolError) as caught:
        Runner().which("mksquashfs-of-nowhere")
    assert "not installed" in caught.value.message
    assert "install mksquashfs-of-nowhere" in caught.value.hint


def test_output_and_status() -> None:
    done = Runner().output(["sh", "-c", "echo a; echo b >&2; exit 3"])
    assert (done.status, done.tail) == (3, ("a", "b"))


def test_no_answer_in_time() -> None:
    assert Runner().output(["sleep", "5"], timeout=0.1).status == 124


def test_a_logged_run_keeps_all_and_shows_the_tail(tmp_path: Path) -> None:
    lines: list[str] = []
    done = Runner().logged(["sh", "-c", "seq 100; exit 2"], tmp_path / "log", on_line=lines.append)
    assert (done.status, done.tail[0], done.tail[-1]) == (2, "81", "100")
    assert len(lines) == 100
    assert (tmp_path / "log").read_text().startswith("> sh -c 'seq 100; exit 2'\n1\n")


def test_the_environment_is_added_to() -> None:
    assert Runner().output(["sh", "-c", "echo $X-$HOME"], env={"X": "1"}).tail == (
        f"1-{os.environ['HOME']}",
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    script = (
        "import sys, signal, pathlib; from hpcstack.core.process import Runner; from "
        "hpcstack.cli.session import _terminate\n"
        "signal.signal(signal.SIGTERM, _terminate); signal.signal(signal.SIGINT, "
        "signal.default_int_handler)\n"
        "Runner().logged(['sh', '-c', 'sleep 4242 & echo started; wait'], "
        "pathlib.Path(sys.argv[1]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "log")], stderr=subprocess.DEVNULL
    )
    until = time.monotonic() + 20
    while "started" not in ((tmp_path / "log").read_text() if (tmp_path / "log").exists() else ""):
        assert time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(20) != 0
    left = subprocess.run(
        ["pgrep", "-f", "^sleep 4242$"], capture_output=True, text=True, check=False
    ).stdout
    assert left == ""


def test_attached_returns_the_programs_status() -> None:
    assert Runner().attached(["sh", "-c", "exit 7"]) == 7
    assert Runner().attached(["sh", "-c", "kill -KILL $$"]) == 137


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
def test_what_ends_us_ends_the_attached_program(number: signal.Signals, tmp_path: Path) -> None:
    script = (
        "import sys; from hpcstack.core.process import Runner\n"
        "sys.exit(Runner().attached(['sh', '-c', 'echo $$ >\"$1\"; exec sleep 4343', 'sh', sys.argv[1]]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "pid")], stdin=subprocess.DEVNULL
    )
    until = time.monotonic() + 20
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < until
        time.sleep(0.02)
    time.sleep(0.2)
    process.send_signal(number)
    assert process.wait(20) == (143 if number != signal.SIGKILL else -signal.SIGKILL)
    time.sleep(0.2)
    left = subprocess.run(
        ["pgrep", "-f", "^sleep 4343$"], capture_output=True, text=True, check=False
    ).stdout
    assert left == ""


ENDS_BESIDE = """\
import os, signal, sys, time
from hpcstack.core.process import Runner

class Ending:
    def answer(self, number, terminate):
        if sys.argv[2] == "fails":
            raise OSError("no Slurm")
        if sys.argv[2] == "cannot":
            return terminate()
        time.sleep(0.3)
        os.kill(int(open(sys.argv[1]).read()), signal.SIGKILL)

sys.exit(Runner().attached(["sh", "-c", 'echo $$ >"$1"; exec sleep 4444', "sh", sys.argv[1]], ending=Ending()))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(("can", "status"), [("can", 137), ("cannot", 143), ("fails", 143)])
def test_who_knows_better_ends_the_attached_program(
    number: signal.Signals, can: str, status: int, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    process = subprocess.Popen(
        [sys.executable, "-c", ENDS_BESIDE, str(pid), can], stdin=subprocess.DEVNULL
    )
    until = time.monotonic() + 20
    while not pid.exists() or not pid.read_text():
        assert time.monotonic() < until
        time.sleep(0.02)
    time.sleep(0.2)
    process.send_signal(number)
    assert process.wait(20) == status


SCRIPT = """\
import sys
from hpcstack.core.process import Runner
lines = 'trap : TERM INT; echo $$ >"$1"; sleep 4545; sleep 4545; exit 7'
sys.exit(Runner().attached(["bash", "-c", lines, "bash", sys.argv[1]], is_script=True))
"""


def test_what_a_script_has_started_is_told_to_end(tmp_path: Path) -> None:
    """A shell that waits for a program acts on a signal when that has ended."""
    pid = tmp_path / "pid"
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(pid)], stdin=subprocess.DEVNULL)
    for _ in range(2):
        until = time.monotonic() + 20
        while subprocess.run(
            ["pgrep", "-f", "^sleep 4545$"], capture_output=True, check=False
        ).returncode:
            assert time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
    assert process.wait(20) == 7
