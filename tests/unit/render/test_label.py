"""launchers/in-image/label.py: each line of a rank begins with its number."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from hpcstack.render.template import read_data_file

LABEL = ("-I", "-S", "-c", read_data_file("launchers", "in-image/label.py"), "[rank3]: ")


def start(program: str, *arguments: str) -> subprocess.Popen[bytes]:
    line = (sys.executable, *LABEL, sys.executable, "-c", program, *arguments)
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_both_outputs_are_labelled_once_and_the_status_is_the_ranks() -> None:
    program = (
        "import sys\n"
        "print('a\\n\\nb')\n"
        "print('[rank3]: Traceback\\nhpcstack: rank 3 ended\\n 9%\\r10%', end='', file=sys.stderr)\n"
        "sys.exit(7)"
    )
    rank = start(program)
    out, errors = rank.communicate(timeout=20)
    assert rank.returncode == 7
    assert out == b"[rank3]: a\n\n[rank3]: b\n"
    assert errors == b"[rank3]: Traceback\nhpcstack: rank 3 ended\n[rank3]:  9%\r[rank3]: 10%"


def test_a_signal_reaches_the_rank_and_its_last_words_come() -> None:
    program = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('told'), sys.exit(3)))\n"
        "print('ready', flush=True)\ntime.sleep(60)"
    )
    rank = start(program)
    assert rank.stdout
    assert rank.stdout.readline() == b"[rank3]: ready\n"
    os.kill(rank.pid, signal.SIGTERM)
    assert rank.stdout.read() == b"[rank3]: told\n"
    assert rank.wait(20) == 3


def test_a_question_is_seen_before_it_is_answered() -> None:
    rank = start("import sys, time; sys.stdout.write('go on? '); sys.stdout.flush(); time.sleep(2)")
    assert rank.stdout
    began = time.monotonic()
    assert os.read(rank.stdout.fileno(), 100) == b"[rank3]: go on? "
    assert time.monotonic() - began < 1.9
    rank.communicate()


@settings(max_examples=10)
@given(
    st.lists(st.sampled_from(["a", "\n", "\r", "\r\n", "x" * 70000, "\u00e9", " "]), max_size=12)
)
def test_nothing_is_lost_and_nothing_else_comes(pieces: list[str]) -> None:
    text = "".join(pieces).encode()
    program = "import sys; sys.stdout.buffer.write(bytes.fromhex(sys.stdin.read()))"
    line = (sys.executable, *LABEL, sys.executable, "-c", program)
    done = subprocess.run(line, input=text.hex().encode(), capture_output=True, check=True)
    assert done.stdout.replace(b"[rank3]: ", b"") == text
    for begun in done.stdout.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"):
        assert not begun.strip() or begun.startswith(b"[rank3]: ")
