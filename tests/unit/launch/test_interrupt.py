"""Ctrl-C on a launch: the shell around a rank and launchers/on-node/interrupt.sh, by real shells;
what is made of it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcstack.core import data
from hpcstack.core.process import Completed, Runner
from hpcstack.launch import interrupt
from hpcstack.launch.interrupt import Interruption, Told
from hpcstack.launch.record import BEGAN, FILE
from hpcstack.launch.stacks import name_account
from hpcstack.launch.stderr import Stderr
from hpcstack.render.launchers import wrap_rank
from hpcstack.render.template import read_data_file
from hpcstack.slurm.state import JobState
from support.log_reading import find_failure

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


def _start(
    shell: str, folder: Path, job: str, rank: int, seconds: float, **env: str
) -> subprocess.Popen[bytes]:
    """A rank below its shell, as in step 3 of JOB; it needs so many SECONDS to end."""
    (folder / "counts.py").write_text(COUNTS)
    command = (sys.executable, "counts.py", f"ready-{rank}", str(seconds))
    return _start_command(shell, folder, job, rank, command, **env)


def _start_command(
    shell: str, folder: Path, job: str, rank: int, command: tuple[str, ...], **env: str
) -> subprocess.Popen[bytes]:
    environ = {**os.environ, "SLURM_JOB_ID": job, "SLURM_STEP_ID": "3", "RANK": str(rank), **env}
    environ.pop("SLURMD_NODENAME", None)
    ready = folder / f"ready-{rank}"
    process = subprocess.Popen([shell, *wrap_rank(command)[1:]], env=environ, cwd=folder)
    until = time.monotonic() + 20
    while not ready.exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    return process


def _interrupt(shell: str, job: str, step: str, seconds: int) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    argv = [
        shell,
        "-c",
        data.read_script("on-node/interrupt.sh"),
        "interrupt",
        job,
        step,
        str(seconds),
    ]
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
        assert (tmp_path / "ready-0-saved").exists()
        assert (tmp_path / "ready-1-saved").exists()
        assert quick.poll() is None
        assert slow.poll() is None

        quick.send_signal(signal.SIGTERM)
        slow.send_signal(signal.SIGTERM)
        assert (quick.wait(10), slow.wait(10)) == (0, 0), (
            "each ends with what its rank has ended with"
        )
    finally:
        for process in (quick, slow):
            process.kill()
            process.wait()


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_who_has_not_ended_is_told_by_number(shell: str, tmp_path: Path) -> None:
    job = f"89{os.getpid()}"
    ranks = [
        _start(shell, tmp_path, job, number, seconds) for number, seconds in ((4, 0.0), (7, 50.0))
    ]
    try:
        assert _interrupt(shell, job, "3", 2) == "hpcstack-interrupted: 2 7\n"
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def _check_that_it_saves(
    shell: str, job: str, process: subprocess.Popen[bytes], folder: Path
) -> None:
    """Interrupt the one rank of JOB, rank 0, which PROCESS is the shell of: it is told, and does
    what it has to.
    """
    try:
        assert _interrupt(shell, job, "3", 10) == "hpcstack-interrupted: 1\n"
        assert (folder / "ready-0-saved").exists()
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("shell", ["dash", "bash"])
@pytest.mark.parametrize("between", ["dash", "bash"])
def test_a_program_below_a_script_is_interrupted(shell: str, between: str, tmp_path: Path) -> None:
    job = f"90{os.getpid()}"
    (tmp_path / "run.sh").write_text(f"{sys.executable} counts.py ready-0 0\nexit $?\n")
    (tmp_path / "counts.py").write_text(COUNTS)
    process = _start_command(shell, tmp_path, job, 0, (between, "run.sh"))
    _check_that_it_saves(shell, job, process, tmp_path)


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_so_it_is_where_env_cannot_reset_signals(shell: str, tmp_path: Path) -> None:
    """coreutils before 8.31, as Ubuntu 20.04 has it: what dash starts beside it has INT ignored,
    and Python keeps that.
    """
    job = f"91{os.getpid()}"
    old = tmp_path / "bin/env"
    old.parent.mkdir()
    old.write_text(
        '#!/bin/sh\ncase $1 in --default-signal*) exit 125 ;; esac\nexec /usr/bin/env "$@"\n'
    )
    old.chmod(0o755)
    process = _start(shell, tmp_path, job, 0, 0.0, PATH=f"{old.parent}:{os.environ['PATH']}")
    _check_that_it_saves(shell, job, process, tmp_path)


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_a_shell_that_is_told_to_end_meanwhile_does_not_stay(shell: str, tmp_path: Path) -> None:
    job = f"92{os.getpid()}"
    process = _start(shell, tmp_path, job, 0, 30.0)
    try:
        assert _interrupt(shell, job, "3", 0) == "hpcstack-interrupted: 1 0\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 143
    finally:
        process.kill()
        process.wait()


class Cluster(Runner):
    """squeue says that the job runs on two nodes; a step beside it answers ANSWERS; scancel takes
    what it is given.
    """

    def __init__(self, answers: str, *, running: bool = True, refuses: bool = False) -> None:
        self.answers, self.running, self.refuses = answers, running, refuses
        self.cancelled: list[tuple[str, ...]] = []

    def output(self, argv, *, env=None, timeout=60.0, stdin=Path(os.devnull)):  # type: ignore[no-untyped-def]
        if argv[0] == "squeue":
            return Completed(
                tuple(argv),
                0,
                (),
                f"12|12|RUNNING|2|gpu|{name_account(os.geteuid())}|None\n" if self.running else "",
            )
        if argv[0] == "scancel":
            self.cancelled.append(tuple(argv[1:]))
            return Completed(tuple(argv), int(self.refuses))
        return Completed(tuple(argv), 0, (), self.answers)


def _launched(folder: Path, step: str, cluster: Cluster) -> Interruption:
    (folder / FILE).write_text(
        '{"stack": "s-1", "started": "", "command": [], "runtime": "r", "mode": "m", '
        '"image_sha256": ""}'
    )
    (folder / BEGAN).write_text(f"12\n{step}\nnode[1-2]\n12\n")
    return Interruption(folder, cluster, Stderr(folder, lambda line: None), None)


class Program:
    """What was started here."""

    def __init__(self) -> None:
        self.ended = 0

    def terminate(self) -> None:
        self.ended += 1


KILLED = "interrupted; {} after 30 s; exit 130; log: {}/stderr.log"
BY_USER = JobState("CANCELLED", 130, "Ctrl-C")
OUTCOMES = {
    "0: hpcstack-interrupted: 4\n1: hpcstack-interrupted: 4\n": (
        Told(8, ()),
        "interrupted: 8 ranks ended; exit 130",
    ),
    "0: hpcstack-interrupted: 1 0\n1: hpcstack-interrupted: 0\n": (
        Told(1, (0,)),
        KILLED.format("rank 0 was killed: it had not ended", "{}"),
    ),
    "0: hpcstack-interrupted: 4 1 2\n1: hpcstack-interrupted: 4 4\n": (
        Told(8, (1, 2, 4)),
        KILLED.format("ranks 1-2,4 were killed: they had not ended", "{}"),
    ),
}


@pytest.mark.parametrize("answers", OUTCOMES)
def test_the_first_waits_for_all_nodes_and_ends_the_step(answers: str, tmp_path: Path) -> None:
    cluster, program = Cluster(answers), Program()
    interruption = _launched(tmp_path, "3", cluster)
    interruption.answer(signal.SIGINT, program.terminate)
    assert cluster.cancelled == [("12.3",)]
    assert not program.ended
    assert interruption.told == OUTCOMES[answers][0]
    assert interruption.end(find_failure("")) == (
        BY_USER,
        "hpcstack: " + OUTCOMES[answers][1].format(tmp_path),
    )


@pytest.mark.parametrize(
    ("answers", "running"),
    [
        ("0: hpcstack-interrupted: 0\n1: hpcstack-interrupted: 0\n", True),  # containers start
        ("srun: error: Unable to create step\n", True),
        ("", False),
    ],
)
def test_where_no_rank_can_be_told_the_step_is_ended(
    answers: str, running: bool, tmp_path: Path
) -> None:
    """Also in a script, which does not end of a TERM: the step went on, and was called interrupted."""
    cluster, program = Cluster(answers, running=running), Program()
    interruption = _launched(tmp_path, "3", cluster)
    interruption.answer(signal.SIGINT, program.terminate)
    assert cluster.cancelled == [("12.3",)]
    assert interruption.end(find_failure("")) == (BY_USER, "hpcstack: interrupted; exit 130")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("step", ["", "3"])
def test_where_there_is_no_step_or_slurm_refuses_what_was_started_is_ended(
    number: signal.Signals, step: str, tmp_path: Path
) -> None:
    cluster, program = Cluster("", refuses=True), Program()
    _launched(tmp_path, step, cluster).answer(number, program.terminate)
    assert program.ended == 1


def test_what_comes_after_the_first_waits_for_nobody(tmp_path: Path) -> None:
    cluster, program = Cluster(""), Program()
    interruption = _launched(tmp_path, "3", cluster)
    for _ in range(2):
        interruption.answer(signal.SIGINT, program.terminate)
    assert cluster.cancelled == [("12.3",), ("12.3",)]
    assert "twice" in interruption.end(find_failure(""))[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_term_is_handed_on_and_later_the_step_is_ended(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupt, "TIME_S", 0)
    cluster, program = Cluster(""), Program()
    interruption = _launched(tmp_path, "3", cluster)
    interruption.answer(number, program.terminate)
    assert cluster.cancelled == [("--signal=TERM", "12.3"), ("12.3",)]
    assert interruption.has_come is (number == signal.SIGHUP)


def test_a_closed_terminal_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupt, "TIME_S", 0)
    interruption = _launched(tmp_path, "3", Cluster(""))
    interruption.answer(signal.SIGHUP, Program().terminate)
    state, last = interruption.end(find_failure(FAILED.format("OSError: x\n")))
    assert state == JobState("CANCELLED", 129, "a closed terminal")
    assert last == (
        "hpcstack: the terminal was closed: launch --batch goes on without one; exit 129"
    )


FAILED = "Traceback (most recent call last):\n{}hpcstack: rank 2 on n1 ended with 1 [0 5.0]\n"


def test_only_what_is_more_than_an_interrupt_is_a_failure(tmp_path: Path) -> None:
    interruption = _launched(tmp_path, "3", Cluster(next(iter(OUTCOMES))))
    interruption.answer(signal.SIGINT, Program().terminate)
    quiet = find_failure(FAILED.format("KeyboardInterrupt\n"))
    assert interruption.end(quiet)[1] == "hpcstack: interrupted: 8 ranks ended; exit 130"
    loud = find_failure(FAILED.format("OSError: no space left\n"))
    said = (
        "hpcstack: interrupted; rank 2 on n1 failed first: OSError: no space left; exit 130; log: "
    )
    assert interruption.end(loud)[1].startswith(said)


def test_the_shells_stay_longer_than_hpcstack_waits() -> None:
    held = re.search(r"date \+%s\) \+ (\d+)\)\)", read_data_file("launchers", "in-image/rank.sh"))
    assert held
    assert int(held[1]) >= interrupt.TIME_S + interrupt.START_S + 10
