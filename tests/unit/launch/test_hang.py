"""Which rank of a job that hangs is not where the others are, read out of what
launchers/on-node/stacks.sh says.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstack.core import data
from hpcstack.core.errors import InputError, SlurmError
from hpcstack.core.process import Completed, Runner
from hpcstack.launch.hang import (
    describe_ranks,
    describe_standing,
    format_ranges,
    judge_ranks,
    parse_ranks,
)
from hpcstack.launch.stacks import (
    _make_remote_line,
    ask_job,
    name_account,
    parse_job,
    run_as_job_user,
)
from hpcstack.render.launchers import wrap_rank

WAITS = """\
  Process 7: python3 -u train.py
  Python v3.11.2 (/usr/bin/python3.11)

  Thread 8 (idle): "worker"
      wait (/usr/lib/python3.12/threading.py:324)
  Thread 7 (idle): "MainThread"
      {operation} (/usr/local/lib/python3.12/dist-packages/torch/distributed/distributed_c10d.py:3252)
      wrapper (/usr/local/lib/python3.12/dist-packages/torch/distributed/c10d_logger.py:83)
      sync (/home/me/train.py:{line})
      <module> (/home/me/train.py:9)
"""
ELSEWHERE = (
    '  Thread 7 (active): "MainThread"\n      decode '
    "(/usr/lib/python3/dist-packages/PIL/Image.py:80)\n      load (/home/me/data.py:17)\n      "
    "<module> (/home/me/train.py:8)\n"
)
THREADS = "  py-spy: Permission Denied\n  threads: 2 a.out, state S, waits in futex_wait\n"


def rank(number: int, host: str, said: str, world: int = 4, label: int = 0) -> str:
    lines = (
        f"hpcstack: rank {number} of {world} on {host} is process 7 of step 0, state S: python3 "
        f"train.py\n{said}"
    )
    return "".join(f"{label}: {line}\n" for line in lines.splitlines())


def waits(operation: str = "all_reduce", line: int = 5) -> str:
    return WAITS.format(operation=operation, line=line)


@pytest.mark.parametrize(
    ("text", "odd"),
    [
        (rank(0, "a", waits()) + rank(1, "a", waits()) + rank(2, "b", waits()) + rank(3, "b", ELSEWHERE),
         [("rank 3 on b is at /home/me/data.py:17, while 3 ranks are in all_reduce, called at " "/home/me/train.py:5")]),
        (rank(0, "a", waits(), 2) + rank(1, "b", ELSEWHERE, 2),
         [("rank 1 on b is at /home/me/data.py:17, while 1 rank is in all_reduce, called at " "/home/me/train.py:5")]),
        (rank(0, "a", waits(), 3) + rank(1, "a", waits("broadcast", 7), 3) + rank(2, "b", waits(), 3),
         [("rank 1 on a is in broadcast, called at /home/me/train.py:7, while 2 ranks are in " "all_reduce, called at /home/me/train.py:5")]),
        (rank(0, "a", waits()) + rank(1, "a", waits()), ["ranks 2-3 are not there"]),
        (rank(0, "a", waits(), 2) + rank(1, "b", waits(), 2), []),
        (rank(0, "a", waits(), 3) + rank(1, "b", waits(), 3) + rank(2, "b", THREADS, 3),
         [("rank 2 on b is in a.out, state S, waits in futex_wait (2 threads), while 2 ranks are " "in all_reduce, called at /home/me/train.py:5")]),
        ("srun: error: nothing\n", []),
    ],
    ids=["elsewhere", "two ranks", "another collective", "gone", "all wait", "no Python", "nobody"],
)  # fmt: skip
def test_who_is_odd(text: str, odd: list[str]) -> None:
    assert list(judge_ranks(parse_ranks(text)).odd) == odd


def test_nodes_that_answer_at_once_are_kept_apart() -> None:
    """Each node's lines have its label; they come mixed."""
    first = rank(0, "a", waits(), 2, label=0).splitlines()
    second = rank(1, "b", ELSEWHERE, 2, label=11).splitlines()
    mixed = [
        line for pair in zip(first, [*second, *first[len(second) :]], strict=True) for line in pair
    ]
    found = parse_ranks("\n".join(f"{line:>3}" for line in mixed))
    assert [(one.number, one.host, one.whereabouts.place) for one in found] == [
        (0, "a", "/home/me/train.py:5"),
        (1, "b", "/home/me/data.py:17"),
    ]


def test_each_step_of_a_job_is_a_training_of_its_own() -> None:
    other = "".join(rank(n, "a", ELSEWHERE if n else waits(), 2) for n in (0, 1)).replace(
        "of step 0", "of step 1"
    )
    lines, well = describe_ranks(
        parse_ranks("".join(rank(n, "a", waits(), 2) for n in (0, 1)) + other)
    )
    assert not well
    assert lines[0] == "step 0:"
    assert lines.count("step 1:") == 1
    assert [line for line in lines if line.startswith("ODD: ")] == [
        (
            "ODD: rank 1 on a is at /home/me/data.py:17, while 1 rank is in all_reduce, called at "
            "/home/me/train.py:5"
        )
    ]


def test_what_is_said_to_people() -> None:
    assert describe_standing(
        judge_ranks(parse_ranks(rank(0, "a", waits(), 2) + rank(1, "b", waits(), 2)))
    )[-1].startswith("all ranks are in the same")
    assert describe_standing(judge_ranks([])) == [
        "no rank was found: the job runs none, or its nodes do not answer"
    ]


@given(st.sets(st.integers(0, 5000), min_size=1, max_size=60))
def test_numbers_as_ranges(found: set[int]) -> None:
    back: set[int] = set()
    for part in format_ranges(sorted(found)).split(","):
        first, _, last = part.partition("-")
        back |= set(range(int(first), int(last or first) + 1))
    assert back == found


@given(
    st.text(
        st.sampled_from("hpcstack: rank 0123456789 of on is process , state S:\n()MainThread\"'"),
        max_size=300,
    )
)
def test_whatever_a_node_says(text: str) -> None:
    describe_standing(judge_ranks(parse_ranks(text)))


def test_what_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert (parse_job("36_2.1").job, parse_job("36_2.1").step) == ("36_2", "1")
    for wrong in ("", "name", "1;2"):
        with pytest.raises(InputError):
            parse_job(wrong)


SLEEPS = "import time\ndef inner():\n    time.sleep(60)\ninner()\n"


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_a_real_rank_is_found_and_nothing_happens_to_it(shell: str, tmp_path: Path) -> None:
    """By the shell that starts it, in its job and step alone; what it does by py-spy, which must be
    here.
    """
    (tmp_path / "train.py").write_text(SLEEPS)
    environ = {
        **os.environ,
        "SLURM_JOB_ID": f"77{os.getpid()}",
        "SLURM_STEP_ID": "3",
        "RANK": "5",
        "WORLD_SIZE": "8",
    }
    environ.pop("SLURMD_NODENAME", None)
    process = subprocess.Popen(
        [shell, *wrap_rank((sys.executable, "train.py"))[1:]], cwd=tmp_path, env=environ
    )
    try:
        spy = str(Path(sys.executable).parent / "py-spy")
        until = time.monotonic() + 30
        text = ""
        while "inner" not in text and time.monotonic() < until:
            text = _look(shell, environ["SLURM_JOB_ID"], "3", spy)
        (found,) = parse_ranks(text)
        assert (found.number, found.world, found.whereabouts.place) == (
            5,
            8,
            f"{tmp_path}/train.py:3",
        ), text
        assert found.stack[0].function == "inner"
        assert process.poll() is None
        assert "no rank of job" in _look(shell, environ["SLURM_JOB_ID"], "4", spy)
        assert "no rank of job" in _look(shell, "1", "", spy)
        (blind,) = parse_ranks(_look(shell, environ["SLURM_JOB_ID"], "", str(tmp_path / "none")))
        assert blind.stack or "state S" in str(blind.whereabouts)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_all_ranks_of_a_node_are_asked_at_once(shell: str, tmp_path: Path) -> None:
    """A py-spy that needs two seconds for each of six ranks; their lines do not mix."""
    spy = tmp_path / "spy"
    spy.write_text('#!/bin/sh\nfor n in 1 2 3 4; do echo "line $n of $5"; sleep 0.5; done\n')
    spy.chmod(0o755)
    job = f"66{os.getpid()}"
    environ = {**os.environ, "SLURM_JOB_ID": job, "SLURM_STEP_ID": "0", "WORLD_SIZE": "6"}
    environ.pop("SLURMD_NODENAME", None)
    sleeps = [sys.executable, "-c", "import time; time.sleep(60)"]
    ranks = [
        subprocess.Popen(sleeps, env={**environ, "RANK": str(number)}, start_new_session=True)
        for number in range(6)
    ]
    try:
        time.sleep(0.5)
        began = time.monotonic()
        text = _look(shell, job, "", str(spy))
        assert time.monotonic() - began < 8
        for process in ranks:
            (block,) = [
                part for part in text.split("hpcstack: ") if f"process {process.pid} " in part
            ]
            assert block.count(f"of {process.pid}\n") == 4, text
        assert len(parse_ranks(text)) == 6
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def _look(shell: str, *words: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    done = subprocess.run(
        [shell, "-c", data.read_script("on-node/stacks.sh"), "stacks", *words],
        capture_output=True,
        text=True,
        env=environ,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def answer_of(node: str) -> str:
    return f"hpcstack: rank 0 of 2 on {node} is process 7 of step 0, state S: python train.py\n"


class Cluster(Runner):
    """Slurm with job 7 of USER on three nodes; `ssh` answers on all but the last."""

    def __init__(self, user: str) -> None:
        self.user = user
        self.asked: list[tuple[str, ...]] = []

    def has(self, tool: str) -> bool:
        return True

    def output(self, argv: Sequence[str], **_: object) -> Completed:
        words = tuple(argv)
        self.asked.append(words)
        said, status = "", 0
        if words[0] == "ssh":
            node = words[2]
            said, status = ("", 255) if node == "n3" else (answer_of(node), 0)
        elif words[-1] == "%N":
            said = "n[1-3]\n"
        elif words[0] == "squeue":
            said = f"7|7|RUNNING|3|p|{self.user}|None\n"
        elif words[0] == "scontrol":
            said = "n1\nn2\nn3\n"
        else:
            status = 1  # srun starts no step
        return Completed(words, status, tuple(said.splitlines()), said)


SSH = ("ssh", "-oBatchMode=yes", "{node}")


def test_root_asks_another_users_job_by_the_sites_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    cluster = Cluster("ann")
    answers = ask_job(parse_job("7"), SSH, cluster)
    assert answers.text == f"0: {answer_of('n1')}1: {answer_of('n2')}"
    assert (answers.silent, answers.own) == (1, False)
    assert answers.note == "ann's, asked by ssh"
    lines = [words[3] for words in cluster.asked if words[0] == "ssh"]
    assert all("SLURMD_NODENAME=n" in line for line in lines)
    assert all(len(line) < 9000 for line in lines), "Dropbear's limit"
    with pytest.raises(InputError, match="job 7 is ann's"):
        ask_job(parse_job("7"), (), cluster)


def test_the_sites_shell_serves_where_slurm_starts_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    me = name_account(os.geteuid())
    answers = ask_job(parse_job("7"), SSH, Cluster(me))
    assert (answers.silent, answers.own) == (1, True)
    assert answers.note.startswith("asked by ssh, as Slurm starts no step beside it: ")
    with pytest.raises(SlurmError, match="did not answer"):
        ask_job(parse_job("7"), (), Cluster(me))
    # nobody but root asks another user's job
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(InputError, match="job 7 is ann's"):
        ask_job(parse_job("7"), SSH, Cluster("ann"))


@pytest.mark.parametrize("shell", ["sh", "bash", "tcsh"])
def test_the_line_for_a_remote_shell_is_the_same_to_every_shell(shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"no {shell}")
    line = _make_remote_line(0, "n1", "999999999", "")
    done = subprocess.run([shell, "-c", line], capture_output=True, text=True)
    assert done.stdout == "hpcstack: no rank of job 999999999 is on n1\n", done.stderr


def test_who_asks_as_a_jobs_user_lends_neither_terminal_nor_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That user may take the process over: it is in a session of its own, and knows no secret."""
    asked: list[tuple[str, ...]] = []

    class Asked(Runner):
        def output(self, argv: Sequence[str], **_: object) -> Completed:
            asked.append(tuple(argv))
            user = name_account(os.getuid())
            return Completed(tuple(argv), 0, (), f"7|7|RUNNING|1|p|{user}|None\n")

    monkeypatch.setenv("A_TOKEN", "secret")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    run_as_job_user("7", ["hang", "7"], Asked())
    words = asked[-1]
    session = words.index("setsid")
    assert words[0] == "setpriv"
    assert words[session : session + 4] == ("setsid", "--wait", "env", "-i")
    assert words[-5:] == ("-I", "-m", "hpcstack", "hang", "7")
    assert not [word for word in words if "secret" in word]

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(InputError, match="--as-user is for root"):
        run_as_job_user("7", ["hang", "7"], Asked())
