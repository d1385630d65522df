"""What runs in no enclosure ends with who started it, wherever its children went."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcstack.build.engines.enclosure import supervise_command

# in a session of its own, and a child of nobody's
DAEMON = "setsid sh -c 'sleep {0} & exec sleep {0}' & "


def living(mark: str) -> bool:
    return not subprocess.run(
        ["pgrep", "-f", f"^sleep {mark}$"], capture_output=True, check=False
    ).returncode


def wait_until(is_there: bool, mark: str) -> None:
    until = time.monotonic() + 20
    while living(mark) is not is_there and time.monotonic() < until:
        time.sleep(0.02)
    assert living(mark) is is_there


@pytest.fixture
def mark() -> str:
    """Seconds that nothing else on this machine sleeps for."""
    return f"{900 + os.getpid() % 97}.{time.monotonic_ns() % 10**9}"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_who_started_it(mark: str, number: signal.Signals) -> None:
    argv = supervise_command(["sh", "-c", f"{DAEMON.format(mark)} sleep {mark}"])
    starter = subprocess.Popen(
        [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])", *argv]
    )
    wait_until(True, mark)
    starter.send_signal(number)
    starter.wait()
    wait_until(False, mark)


def test_it_ends_where_it_is_told_to(mark: str) -> None:
    process = subprocess.Popen(
        supervise_command(["sh", "-c", f"trap '' TERM; {DAEMON.format(mark)} sleep {mark}"])
    )
    wait_until(True, mark)
    process.terminate()
    assert process.wait() == 128 + signal.SIGTERM
    wait_until(False, mark)


def test_what_a_program_leaves_behind_ends_with_it(mark: str) -> None:
    assert (
        subprocess.run(
            supervise_command(["sh", "-c", f"{DAEMON.format(mark)} sleep 0.2; exit 3"]), check=False
        ).returncode
        == 3
    )
    wait_until(False, mark)


def test_its_status_is_the_programs(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    for argv, status in (
        (["true"], 0),
        (["sh", "-c", "kill -9 $$"], 137),
        (["no-such-program"], 127),
        ([str(plain)], 126),
    ):
        assert (
            subprocess.run(supervise_command(argv), check=False, capture_output=True).returncode
            == status
        )
