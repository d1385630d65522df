"""NCCL's RAS: its documented texts, read; and asked through the shell of `hang`, of a server that
speaks as it does.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstack.core import data
from hpcstack.launch.ras import parse_ras, summarise_ras


def rank(number: int, **counts: int) -> dict[str, object]:
    status = {"init_state": 0, "async_error": 0, "finalize_called": False}
    return {
        "rank": number,
        "host": "10.0.0.5",
        "pid": 1000 + number,
        "status": status,
        "collective_counts": counts,
    }


def said(document: object) -> str:
    lines = ["OK", "OK", *json.dumps(document, indent=2).splitlines()]
    return "".join(f"0: hpcstack-ras: {line}\n" for line in lines)


WELL = {
    "communicators": [
        {"hash": "0xae", "size": 2, "ranks": [rank(0, AllReduce=7), rank(1, AllReduce=7)]}
    ]
}


def test_ranks_that_all_answer() -> None:
    found = parse_ras(said(WELL))
    assert found
    assert not found.odd
    assert not found.notes
    assert "every rank answers" in summarise_ras(found)[0]


def test_an_answer_that_was_cut_is_never_well() -> None:
    """8,192 ranks in two communicators are more than was read: the rest were called well, with the
    rank that hung among them.
    """
    whole = said(WELL)
    for length in (len(whole) // 3, len(whole) - 30):
        found = parse_ras(whole[:length] + "\n")
        assert found
        assert not found.whole
        assert "UNKNOWN" in summarise_ras(found)[0]
        assert "every rank answers" not in " ".join(summarise_ras(found))


def test_a_rank_that_does_not_answer_and_one_that_is_behind() -> None:
    gone = {
        "rank": 3,
        "host": "10.0.0.6",
        "pid": 77,
        "status": {"unresponsive": True, "considered_dead": True},
    }
    one = {"hash": "0xae", "size": 4, "missing_ranks": [gone],
           "ranks": [rank(0, AllReduce=7), rank(1, AllReduce=7), rank(2, AllReduce=6, Broadcast=1)]}  # fmt: skip
    found = parse_ras(said({"communicators": [one]}))
    assert found
    assert found.odd == ("rank 3 (process 77 on 10.0.0.6) is dead; communicator 0xae of 4 ranks",)
    assert found.notes[0].startswith(
        "rank 2 (process 1002 on 10.0.0.5) has launched 6 AllReduce, 2 ranks 7"
    )
    assert "1 Broadcast, 2 ranks 0" in found.notes[1]


# The excerpts of NCCL's documentation, as far as they name somebody
TEXT = """\
Communicators... (2.05s)

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    0         1         4       7-8        32        32   RUNNING  INCOMPLETE

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  26 ranks have launched up to operation 6650
  6 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210
"""


def test_the_root_is_found_over_all_communicators() -> None:
    """Stage 1 waits for rank 2 in its own communicator, and all wait for stage 1 in that of all."""
    own = {"hash": "0x1", "size": 2, "ranks": [rank(2, AllGather=4), rank(3, AllGather=5)]}
    everyone = {
        "hash": "0x2",
        "size": 4,
        "ranks": [rank(0, AllReduce=8), rank(1, AllReduce=8), rank(2, AllReduce=7), rank(3, AllReduce=7)],
    }  # fmt: skip
    found = parse_ras(said({"communicators": [everyone, own]}))
    assert found
    (root,) = found.roots
    assert root.who == "rank 2 (process 1002 on 10.0.0.5)"
    assert root.waiters == 3
    assert summarise_ras(found)[0] == (
        "ROOT, by NCCL's RAS: rank 2 (process 1002 on 10.0.0.5) has launched 4 AllGather, others 5; "
        "communicator 0x1 of 2 ranks; 3 ranks wait for it, directly or not"
    )


def test_ranks_that_wait_for_each_other_have_no_root_by_counts() -> None:
    first = {"hash": "0x1", "size": 2, "ranks": [rank(0, AllReduce=2), rank(1, AllReduce=1)]}
    second = {"hash": "0x2", "size": 2, "ranks": [rank(0, AllReduce=1), rank(1, AllReduce=2)]}
    found = parse_ras(said({"communicators": [first, second]}))
    assert found
    assert found.roots == ()
    assert found.notes


def test_the_text_of_older_releases() -> None:
    found = parse_ras(
        "ERROR: no\n" + "".join(f"12: hpcstack-ras: {line}\n" for line in TEXT.splitlines())
    )
    assert found
    assert found.odd == (
        "Process 3487984 on node 172.16.64.213 managing GPU 5 does not answer NCCL",
        "missing from NCCL: rank 21",
    )
    assert found.notes == (
        "rank 0 (process 483072 on 172.16.64.210) has launched up to operation 6649",
    )


def test_no_answer_is_none_and_no_verdict() -> None:
    assert parse_ras("0: hpcstack: rank 0 of 1\n  threads: 3\n") is None
    assert parse_ras("0: hpcstack-ras: \n") is None


@given(st.lists(st.text()))
def test_no_answer_breaks_the_reader(lines: list[str]) -> None:
    parse_ras("".join(f"0: hpcstack-ras: {line}\n" for line in lines))
    parse_ras("0: hpcstack-ras: {" + "".join(lines) + "}\n")


def server(answers: list[bytes]) -> tuple[threading.Thread, int, list[bytes]]:
    """A thread that answers one client as NCCL's RAS does, its port, and what the client sent."""
    listener = socket.create_server(("127.0.0.1", 0))
    sent: list[bytes] = []

    def serve() -> None:
        line, _ = listener.accept()
        with line, listener:
            words = line.makefile("rb")
            for answer in answers:
                sent.append(words.readline())
                line.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread, int(listener.getsockname()[1]), sent


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_it_is_asked_by_its_own_words(shell: str) -> None:
    thread, port, sent = server([b"OK\n", b"OK\n", json.dumps(WELL, indent=1).encode() + b"\n"])
    program = "import time; print('here', flush=True); time.sleep(30)"
    env = {
        **os.environ,
        "SLURM_JOB_ID": f"99{os.getpid()}",
        "RANK": "0",
        "NCCL_RAS_ADDR": f"127.0.0.1:{port}",
    }
    env.pop("SLURMD_NODENAME", None)
    child = subprocess.Popen(
        [sys.executable, "-c", program], env=env, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout
        assert child.stdout.readline() == "here\n"
        base = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
        argv = [
            shell,
            "-c",
            data.read_script("on-node/stacks.sh"),
            "stacks",
            env["SLURM_JOB_ID"],
            "",
            "no-spy",
        ]
        done = subprocess.run(argv, env=base, capture_output=True, text=True, timeout=60)
    finally:
        child.kill()
        child.wait()
    thread.join(10)
    assert [line.lower() for line in sent] == [
        b"timeout 8\n",
        b"set format json\n",
        b"verbose status\n",
    ]
    found = parse_ras(done.stdout)
    assert found and not found.odd, done.stdout
