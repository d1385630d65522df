"""The shell around a rank (launchers/in-image/rank.sh), by real shells: what it says, and what it
hands on.
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

from hpcstack.render.launchers import wrap_rank

SHELLS = ["dash", "bash"]
ASLEEP = """\
import os, signal, sys, time
if sys.argv[1] == "told":
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, lambda n, _: (print(signal.Signals(n).name, flush=True), sys.exit(7)))
try:
    os.write(1, b"ready\\n")  # in one piece: the signal may come at once
    time.sleep(20)
except KeyboardInterrupt:
    print("SIGINT", flush=True)
    sys.exit(7)
"""


def _heed_interrupts() -> None:
    """What runs in a shell's background has INT ignored, and a shell cannot undo that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(shell: str, *command: str, **env: str) -> subprocess.Popen[str]:
    argv = [shell, *wrap_rank(command)[1:]]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.PIPE, text=True,
                            preexec_fn=_heed_interrupts, env={**os.environ, "RANK": "3", **env})  # fmt: skip


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("exit 143", 143)]
)
def test_its_status_is_the_ranks(shell: str, script: str, status: int) -> None:
    process = start(shell, "sh", "-c", script)
    _, said = process.communicate(timeout=20)
    assert process.returncode == status
    line = re.search(
        rf"^hpcstack: rank 3 on \S+ ended with {status} \[0 [0-9.]+\]$", said, re.MULTILINE
    )
    assert bool(line) is (status not in (0, 143)), said


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGINT"])
def test_a_signal_for_the_first_process_reaches_the_rank(
    shell: str, name: str, tmp_path: Path
) -> None:
    (tmp_path / "asleep.py").write_text(ASLEEP)
    with start(shell, sys.executable, str(tmp_path / "asleep.py"), "told") as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.Signals[name])
        assert process.stdout.readline() == f"{name}\n"
        assert process.wait(10) == 7


SLOW_FORK = """\
#!/bin/sh
# `setsid true` is what the shell around a rank tries before it starts it: here it waits for a signal to have come.
: >"$READY"
while [ ! -e "$SENT" ]; do sleep 0.05; done
exit 1
"""


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR2", "SIGHUP", "SIGINT"])
def test_a_signal_before_there_is_a_rank_reaches_it(shell: str, name: str, tmp_path: Path) -> None:
    """A signal between the start of the shell and its traps ended it: 6 of 10 beside other tests."""
    (tmp_path / "setsid").write_text(SLOW_FORK)
    (tmp_path / "setsid").chmod(0o755)
    ready, sent = tmp_path / "ready", tmp_path / "sent"
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "READY": str(ready), "SENT": str(sent)}
    with start(shell, "sleep", "20", **env) as process:
        while not ready.exists():
            time.sleep(0.02)
        process.send_signal(signal.Signals[name])
        time.sleep(0.2)
        sent.touch()
        ended = process.wait(10)
    assert ended == 128 + signal.Signals[name], "the rank ends by it, and the shell says so"


@pytest.mark.parametrize("shell", SHELLS)
def test_the_rank_is_told_before_the_end_and_one_without_a_handler_goes_on(
    shell: str, tmp_path: Path
) -> None:
    (tmp_path / "asleep.py").write_text(ASLEEP)
    near = {"HPCSTACK_GRACE": "100", "HPCSTACK_END": str(int(time.time()) + 102)}
    with start(shell, sys.executable, str(tmp_path / "asleep.py"), "told", **near) as told:
        assert told.stdout
        assert told.stdout.read() == "ready\nSIGUSR1\n"
        assert told.wait(10) == 7
    process = start(
        shell, sys.executable, "-c", "import time; time.sleep(4); print('went on')", **near
    )
    assert process.communicate(timeout=20)[0] == "went on\n"
    assert process.returncode == 0


@pytest.mark.parametrize("shell", SHELLS)
def test_a_program_that_still_starts_is_told_once_it_listens(shell: str, tmp_path: Path) -> None:
    (tmp_path / "asleep.py").write_text(ASLEEP)
    near = {"HPCSTACK_GRACE": "100", "HPCSTACK_END": str(int(time.time()) + 101)}
    # a script runs it, and late
    late = f"sleep 3; {sys.executable} {tmp_path}/asleep.py told; echo ended with $?"
    process = start(shell, "sh", "-c", late, **near)
    assert process.communicate(timeout=20)[0] == "ready\nSIGUSR1\nended with 7\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_standard_input_is_the_ranks(shell: str) -> None:
    process = start(shell, "cat")
    assert process.communicate("a line\n", timeout=20)[0] == "a line\n"
    assert process.returncode == 0
