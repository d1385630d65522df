"""The end of what an agent started."""

from __future__ import annotations

import subprocess
import sys
import time

from hpcstack_smoke.processes import end_process

STUBBORN = (
    "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); "
    "time.sleep(60)"
)


def start(program: str) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True
    )
    assert child.stdout
    assert child.stdout.readline()
    return child


def test_a_child_ends_kindly() -> None:
    child = start("import time; print('up', flush=True); time.sleep(60)")
    end_process(child)
    assert child.returncode == -15


def test_a_child_that_does_not_listen_is_killed() -> None:
    child, began = start(STUBBORN), time.monotonic()
    end_process(child, patience=0.5)
    assert child.returncode == -9
    assert time.monotonic() - began < 5
