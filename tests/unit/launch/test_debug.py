"""A rank below its debugger, and who talks to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcstack.core.errors import InputError
from hpcstack.launch.debug import (
    check_debug,
    list_debug_variables,
    make_debug_client,
    wrap_debugged,
)
from hpcstack.launch.request import LaunchRequest

PROGRAM = """\
import sys
total = 0
for number in range(3):
    total += number
print("total", total, sys.argv[1:], __name__, __file__)
"""


class Rank:
    """A program that is started as rank 1 of a job, whose rank 1 is to be debugged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        job = f"test{uuid.uuid4().hex[:12]}"
        self.env = {**os.environ, "SLURM_JOB_ID": job, "SLURM_STEP_ID": "0", "RANK": "1"}
        self.env["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *command: str, rank: str = "1") -> subprocess.Popen[str]:
        one = subprocess.Popen(
            wrap_debugged(1, command),
            env={**self.env, "RANK": rank},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(one)
        return one

    def wait(self, process: subprocess.Popen[str]) -> str:
        """Wait until PROCESS waits for its debugger; return what it said."""
        assert process.stderr
        return process.stderr.readline()

    def talk(self, text: str) -> str:
        done = subprocess.run(
            make_debug_client("1"),
            input=text,
            capture_output=True,
            text=True,
            env=self.env,
            check=False,
            timeout=60,
        )
        return done.stdout + done.stderr


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    made = Rank(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    yield made
    for one in made.started:
        one.kill()
        one.communicate()


def test_a_rank_stops_before_its_first_line(rank: Rank) -> None:
    process = rank.start("program.py", "a", "b c")
    said = rank.wait(process)
    assert f"hpcstack enter {rank.env['SLURM_JOB_ID']} --rank 1 --debug" in said
    shown = rank.talk("b 5\nc\np total\ntotal = 40\nc\n")
    assert "-> import sys" in shown
    assert "\n(pdb) 3\n" in shown.replace("\r", "")
    out, _ = process.communicate(timeout=30)
    assert out == f"total 40 ['a', 'b c'] __main__ {'program.py'}\n"
    assert process.returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "program"),
        ("python3", "-u", "-X", "dev", "program.py"),
        ("python3", "-c", PROGRAM.replace("__file__", "1")),
    ],
)
def test_a_program_is_named_as_for_python(rank: Rank, words: tuple[str, ...]) -> None:
    process = rank.start(*words)
    rank.wait(process)
    rank.talk("c\n")
    assert process.communicate(timeout=30)[0].startswith("total 3 [] __main__")
    assert process.returncode == 0


def test_the_other_ranks_run_as_they_are(rank: Rank) -> None:
    process = rank.start("program.py", rank="0")
    assert process.communicate(timeout=30)[0].startswith("total 3")


def test_who_has_left_may_come_back(rank: Rank) -> None:
    process = rank.start("program.py")
    rank.wait(process)
    rank.talk("b 5\n")
    assert "waits for its debugger" in rank.wait(process)
    assert "Num Type" in rank.talk("b\n")
    rank.talk("c\nc\n")
    assert process.wait(timeout=30) == 0


def test_an_exception_is_looked_at_where_it_was(rank: Rank) -> None:
    (rank.folder / "program.py").write_text("def f(x):\n    return 1 / x\n\nf(0)\n")
    process = rank.start("program.py")
    rank.wait(process)
    shown = rank.talk("c\np x\nq\n")
    assert "ZeroDivisionError" in shown
    assert "(pdb) 0\n" in shown
    assert process.wait(timeout=30) == 1


def test_a_breakpoint_in_the_program_counts(rank: Rank) -> None:
    (rank.folder / "program.py").write_text("x = 7\nbreakpoint()\nprint('x', x)\n")
    process = rank.start("program.py")
    rank.wait(process)
    assert "(pdb) 7\n" in rank.talk("c\np x\nx = 8\nc\n")
    assert process.communicate(timeout=30)[0] == "x 8\n"


def test_a_person_who_comes_back_sees_a_prompt(rank: Rank) -> None:
    process = rank.start("program.py")
    rank.wait(process)
    rank.talk("b 5\n")
    rank.wait(process)
    assert rank.talk("") == "(pdb) "
    for _ in range(3):  # and those who come and go at once do no harm
        rank.wait(process)
        rank.talk("")
    rank.wait(process)
    rank.talk("c\nc\n")
    assert process.wait(timeout=30) == 0


def test_to_quit_is_caught_by_no_program(rank: Rank) -> None:
    text = "try:\n    x = 1\n    x = 2\nexcept Exception:\n    print('caught')\nprint('went on')\n"
    (rank.folder / "program.py").write_text(text)
    process = rank.start("program.py")
    rank.wait(process)
    rank.talk("n\nn\nq\n")
    assert process.communicate(timeout=30)[0] == ""
    assert process.returncode == 1


def test_a_forked_child_runs_as_it_is(rank: Rank) -> None:
    text = """\
import multiprocessing as mp
def work(n):
    breakpoint()
    return n + 1
if __name__ == "__main__":
    with mp.get_context("fork").Pool(2) as pool:
        print(pool.map(work, [1, 2]))
"""
    (rank.folder / "program.py").write_text(text)
    process = rank.start("program.py")
    rank.wait(process)
    rank.talk("b 7\nc\nc\n")
    assert process.communicate(timeout=30)[0] == "[2, 3]\n"


def test_a_spawned_child_finds_the_program(rank: Rank) -> None:
    text = """\
import multiprocessing as mp
class Thing:
    pass
def work(thing):
    return type(thing).__name__
if __name__ == "__main__":
    with mp.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, [Thing()]))
"""
    (rank.folder / "program.py").write_text(text)
    process = rank.start("program.py")
    rank.wait(process)
    rank.talk("c\n")
    assert process.communicate(timeout=60)[0] == "['Thing']\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("python3", "-um", "program"), "write -um as options of one letter each"),
        (("python3", "-u"), "there is no program"),
    ],
)
def test_what_cannot_be_read_is_said(rank: Rank, words: tuple[str, ...], said: str) -> None:
    process = rank.start(*words)
    assert said in process.communicate(timeout=30)[1]
    assert process.returncode == 2


def test_options_of_pythons_stay(rank: Rank) -> None:
    (rank.folder / "program.py").write_text(
        "import sys\nprint(sys.flags.optimize, sys.flags.dev_mode, sys.argv)\n"
    )
    process = rank.start("python3", "-O", "-X", "dev", "-W", "ignore", "program.py", "-x", "a b")
    rank.wait(process)
    rank.talk("c\n")
    assert process.communicate(timeout=30)[0] == "1 True ['program.py', '-x', 'a b']\n"


def test_to_quit_ends_the_rank(rank: Rank) -> None:
    process = rank.start("program.py")
    rank.wait(process)
    rank.talk("q\n")
    assert process.wait(timeout=30) == 1


def test_ctrl_c_stops_the_rank_where_it_is(rank: Rank) -> None:
    text = "n = 0\nprint('begun', flush=True)\nwhile n >= 0:\n    n += 1\nprint('left')\n"
    (rank.folder / "program.py").write_text(text)
    process = rank.start("program.py")
    rank.wait(process)
    client = subprocess.Popen(
        make_debug_client("1"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=rank.env,
        text=True,
    )
    assert client.stdin
    assert client.stdout
    client.stdin.write("c\n")
    client.stdin.flush()
    assert process.stdout
    assert process.stdout.readline() == "begun\n"
    client.send_signal(signal.SIGINT)
    client.stdin.write("!n = -9\nc\n")
    client.stdin.flush()
    assert process.communicate(timeout=30)[0] == "left\n"
    client.stdin.close()
    client.wait(timeout=30)
    client.stdout.close()


def test_what_is_no_python_is_said(rank: Rank) -> None:
    process = rank.start("/bin/true")
    assert (
        process.communicate(timeout=30)[1]
        == "hpcstack: rank 1 cannot be debugged: /bin/true is not a Python interpreter\n"
    )
    assert process.returncode == 2


def test_a_rank_without_a_debugger_is_named(rank: Rank) -> None:
    assert "rank 1 has no debugger\n  TIP: launch --debug RANK" in rank.talk("")


def test_what_would_end_it_is_refused() -> None:
    with pytest.raises(InputError, match="mode deepspeed"):
        check_debug(LaunchRequest(("a",), debug=0, mode="deepspeed"), uses_slurm=True)
    with pytest.raises(InputError):
        check_debug(LaunchRequest(("a",), debug=0), uses_slurm=False)
    check_debug(LaunchRequest(("a",), mode="deepspeed"), uses_slurm=False)


def test_nccls_watchdog_waits_unless_somebody_says_otherwise() -> None:
    names = [one.name for one in list_debug_variables(1, {}, {"TORCH_NCCL_ENABLE_MONITORING": "1"})]
    assert names == ["HPCSTACK_DEBUG", "TORCH_NCCL_ASYNC_ERROR_HANDLING"]
