"""Ctrl-C on a launch: the shell around a rank and launchers/on-node/interrupt.sh, by real shells; what is made of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcstack.core import data
from hpcstack.core.process import Completed, Runner
from hpcstack.launch.failure import failure_in
from hpcstack.launch.interrupt import Interruption, Told
from hpcstack.launch.record import BEGAN, FILE
from hpcstack.render.launchers import watched

COUNTS = """\
import os, sys, time
count = 0
try:
    open(sys.argv[1], "w").close()
    time.sleep(60)
except KeyboardInterrupt:
    count += 1
    time.sleep(float(sys.argv[2]))
    open(sys.argv[1] + "-saved", "w").close()
"""


def _start(shell: str, folder: Path, job: str, rank: int, seconds: float) -> subprocess.Popen[bytes]:
    """A rank below its shell, as in step 3 of JOB; it needs so many SECONDS to end."""
    (folder / "counts.py").write_text(COUNTS)
    environ = {**os.environ, "SLURM_JOB_ID": job, "SLURM_STEP_ID": "3", "RANK": str(rank), "PYTHONNOUSERSITE": "1"}
    environ.pop("SLURMD_NODENAME", None)
    ready = folder / f"ready-{rank}"
    argv = [shell, *watched((sys.executable, str(folder / "counts.py"), str(ready), str(seconds)))[1:]]
    process = subprocess.Popen(argv, env=environ)
    until = time.monotonic() + 20
    while not ready.exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    return process


def _interrupt(shell: str, job: str, step: str, seconds: int) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    argv = [shell, "-c", data.script("on-node/interrupt.sh"), "interrupt", job, step, str(seconds)]
    done = subprocess.run(argv, capture_output=True, text=True, env=environ, check=True)
    return done.stdout


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_ranks_of_a_step_are_interrupted_and_their_shells_stay(shell: str, tmp_path: Path) -> None:
    """So nothing that watches them ends the slow one when the quick one is done."""
    job = f"88{os.getpid()}"
    quick, slow = _start(shell, tmp_path, job, 0, 0.0), _start(shell, tmp_path, job, 1, 1.0)
    try:
        assert _interrupt(shell, job, "4", 1) == "hpcstack-interrupted: 0\n", "another step's"
        assert not (tmp_path / "ready-0-saved").exists()

        assert _interrupt(shell, job, "3", 20) == "hpcstack-interrupted: 2\n"
        assert (tmp_path / "ready-0-saved").exists() and (tmp_path / "ready-1-saved").exists()
        assert quick.poll() is None and slow.poll() is None

        quick.send_signal(signal.SIGTERM)
        slow.send_signal(signal.SIGTERM)
        assert (quick.wait(10), slow.wait(10)) == (0, 0), "each ends with what its rank has ended with"
    finally:
        for process in (quick, slow):
            process.kill()
            process.wait()


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_who_has_not_ended_is_told_by_number(shell: str, tmp_path: Path) -> None:
    job = f"89{os.getpid()}"
    ranks = [_start(shell, tmp_path, job, number, seconds) for number, seconds in ((4, 0.0), (7, 50.0))]
    try:
        assert _interrupt(shell, job, "3", 2) == "hpcstack-interrupted: 2 7\n"
    finally:
        for process in ranks:
            process.kill()
            process.wait()


class Cluster(Runner):
    """squeue says that the job runs on two nodes; a step beside it answers ANSWERS; scancel takes what it is given."""

    def __init__(self, answers: str, *, running: bool = True) -> None:
        self.answers, self.running = answers, running
        self.cancelled: list[str] = []

    def output(self, argv, *, env=None, timeout=60.0, stdin=Path(os.devnull)):  # type: ignore[no-untyped-def]
        if argv[0] == "squeue":
            return Completed(tuple(argv), 0, (), "12|RUNNING|2\n" if self.running else "")
        if argv[0] == "scancel":
            self.cancelled.append(argv[1])
            return Completed(tuple(argv), 0)
        return Completed(tuple(argv), 0, (), self.answers)


def _launched(folder: Path, step: str) -> Path:
    (folder / FILE).write_text(
        '{"stack": "s-1", "started": "", "command": [], "runtime": "r", "mode": "m", "image_sha256": ""}'
    )
    (folder / BEGAN).write_text(f"12\n{step}\nnode[1-2]\n12\n")
    return folder


OUTCOMES = {
    "0: hpcstack-interrupted: 4\n1: hpcstack-interrupted: 4\n": (Told(8, ()), "interrupted: 8 ranks ended"),
    "0: hpcstack-interrupted: 1 0\n1: hpcstack-interrupted: 0\n": (
        Told(1, (0,)),
        "interrupted: rank 0 had not ended after 30 s, and it was killed",
    ),
    "0: hpcstack-interrupted: 4 1 2\n1: hpcstack-interrupted: 4 4\n": (
        Told(8, (1, 2, 4)),
        "interrupted: ranks 1-2,4 had not ended after 30 s, and they were killed",
    ),
}


@pytest.mark.parametrize("answers", OUTCOMES)
def test_the_first_waits_for_all_nodes_and_ends_the_step(answers: str, tmp_path: Path) -> None:
    cluster = Cluster(answers)
    interruption = Interruption(_launched(tmp_path, "3"), cluster, None)
    assert interruption.answer(signal.SIGINT) and cluster.cancelled == ["12.3"]
    assert interruption.told == OUTCOMES[answers][0]
    assert interruption.end(failure_in(""), tmp_path / "log") == (130, f"hpcstack: {OUTCOMES[answers][1]}; exit 130")


@pytest.mark.parametrize(
    ("step", "answers", "running"),
    [
        ("", "", True),  # it waits for nodes
        ("3", "0: hpcstack-interrupted: 0\n1: hpcstack-interrupted: 0\n", True),  # its containers start
        ("3", "srun: error: Unable to create step\n", True),
        ("3", "", False),
    ],
)
def test_where_no_rank_can_be_told_the_caller_ends_it(step: str, answers: str, running: bool, tmp_path: Path) -> None:
    cluster = Cluster(answers, running=running)
    interruption = Interruption(_launched(tmp_path, step), cluster, None)
    assert not interruption.answer(signal.SIGINT) and cluster.cancelled == []
    assert interruption.end(failure_in(""), tmp_path / "log") == (130, "hpcstack: interrupted; exit 130")


def test_what_comes_after_the_first_waits_for_nobody(tmp_path: Path) -> None:
    cluster = Cluster("")
    interruption = Interruption(_launched(tmp_path, "3"), cluster, None)
    assert not interruption.answer(signal.SIGINT)
    assert interruption.answer(signal.SIGINT) and cluster.cancelled == ["12.3"]
    assert "twice" in interruption.end(failure_in(""), tmp_path / "log")[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_term_ends_the_step_and_is_no_ctrl_c(number: signal.Signals, tmp_path: Path) -> None:
    cluster = Cluster("")
    interruption = Interruption(_launched(tmp_path, "3"), cluster, None)
    assert interruption.answer(number) and cluster.cancelled == ["12.3"]
    assert not interruption.has_come
