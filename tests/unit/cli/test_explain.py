"""`explain` of an array: each task's end, and what nobody knows is not said to be a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcstack.cli.explain_ import _format_text
from hpcstack.core.progress import Progress
from hpcstack.diagnose.examine_log import examine_text
from hpcstack.diagnose.explanation import Explained, explain_array, explain_reading
from hpcstack.launch.jobs import JobPart
from hpcstack.slurm.state import UNKNOWN, JobState

TRACE = (
    'Traceback (most recent call last):\n  File "/x/t.py", line 3\nValueError: caught, and gone '
    "on\n"
)
ENDED = "hpcstack: rank 0 on n1 ended with 1 [0 5.0]\n"


def explain(log: str, state: JobState = UNKNOWN, *, every: bool = False) -> Explained:
    return explain_reading(examine_text(log), JobPart("7", state), every=every)


def part(folder: Path, task: int, state: JobState, text: str = "") -> JobPart:
    log = folder / f"x-7_{task}.out"
    log.write_text(text)
    return JobPart(f"7_{task}", state, files=(log,))


def test_what_nobody_knows_is_no_failure(tmp_path: Path) -> None:
    parts = [
        part(tmp_path, 0, JobState("COMPLETED"), TRACE),
        part(tmp_path, 1, UNKNOWN, TRACE),  # a traceback that the program may have gone on after
        part(tmp_path, 2, UNKNOWN, TRACE + ENDED),
        part(tmp_path, 3, JobState("FAILED", 3), "no word of why\n"),
        JobPart("7_4-9%2", JobState("PENDING")),
    ]
    found = explain_array(parts, Progress(), every=False)
    assert [task.state for task in found.tasks] == [
        "COMPLETED", "ended, nobody knows how", "FAILED, by its log", "FAILED, exit 3", "PENDING",
    ]  # fmt: skip
    head, *named = found.said.splitlines()
    assert head.startswith("10 tasks: 6 PENDING")
    assert [line.partition(":")[0] for line in named] == ["7_2", "7_3"]


def test_only_the_first_few_are_named(tmp_path: Path) -> None:
    found = explain_array(
        [part(tmp_path, n, JobState("FAILED", 1), TRACE + ENDED) for n in range(8)],
        Progress(),
        every=False,
    )
    assert len(found.tasks) == 8
    assert found.said.splitlines()[-1].startswith("3 more: hpcstack explain 7_TASK")


def test_of_an_unknown_message_it_is_said_who_says_it() -> None:
    log = "step 1\nn1:12:34 [0] misc/socket.cc:9 NCCL WARN odd: remote operation error\n"
    found = explain(log)
    assert not found.known
    assert [clue.number for clue in found.clues] == [2]
    said = _format_text(found)
    assert "said by NCCL's TCP transport, which connects the ranks" in said
    assert '"remote operation error" means that the other end failed' in said


def test_an_echo_is_shown_with_who_says_it() -> None:
    log = "n1:12:34 [0] misc/socket.cc:9 NCCL WARN odd: Broken pipe\n"
    found = explain(log)
    assert [one.signature.id for one in found.shown] == ["system-broken-pipe"]
    assert [clue.number for clue in found.clues] == [1]
    said = _format_text(found)
    assert said.index("system-broken-pipe") < said.index("said by NCCL's TCP transport")


def test_where_the_cause_is_known_nobody_else_is_named() -> None:
    log = "srun: error: odd\nRuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    found = explain(log)
    assert found.shown
    assert found.clues == ()


def test_of_what_ended_well_nothing_else_is_said() -> None:
    """torchrun's agents leave at their end; one that is slow finds the store of the other gone."""
    log = (
        "[W1126 11:10:48.389 TCPStore.cpp:138] [c10d] recvValueWithTimeout failed on SocketImpl(fd=3): "
        "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?\n"
        "E1126 11:10:48.909 19061 torch/distributed/elastic/agent/server/api.py:1008] Error waiting on exit barrier.\n"
    )
    found = explain(log, JobState("COMPLETED"))
    assert _format_text(found) == ("COMPLETED: it ended with 0\n\n1 known message besides: --all")
    found = explain(log)
    assert [one.signature.id for one in found.shown] == ["torchrun-store-gone"]


FAILED = 'Traceback (most recent call last):\n  File "/w/run.py", line 22\nValueError: 31 != 32\n'
CANCELLED = "slurmstepd: error: *** JOB 300 ON n01 CANCELLED AT 2025-05-05T05:05:05{} ***\n"


@pytest.mark.parametrize(
    ("log", "state", "said"),
    [
        # the other ranks hang until the time limit, or until somebody cancels the job
        (FAILED + CANCELLED.format(" DUE TO TIME LIMIT"), "TIMEOUT", "before that ValueError: 31 != 32"),
        (FAILED + CANCELLED.format(""), "CANCELLED", "before that ValueError: 31 != 32"),
        (FAILED + "step 4\n" + CANCELLED.format(""), "CANCELLED", "it was cancelled"),
        (CANCELLED.format("") + FAILED, "CANCELLED", "it was cancelled"),
        # put back into the queue, and failed on another node
        (CANCELLED.format(" DUE TO NODE FAILURE") + "step 1\n" + FAILED, "NODE_FAIL", "after that ValueError: 31 != 32"),
        (FAILED + "step 4\n", "", "its program wrote more after it"),
    ],
)  # fmt: skip
def test_of_an_end_from_outside_it_is_said_what_had_failed(log: str, state: str, said: str) -> None:
    found = explain(log)
    assert found.state.word == state
    assert said in found.said
    assert said != "it was cancelled" or found.said == said


def test_a_known_failure_goes_before_a_bare_signal() -> None:
    port = "gpu48:1:2 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error\n"
    killed = "srun: error: gpu51: task 4: Aborted (core dumped)\n"
    assert _format_text(explain(port + killed)).startswith("A port of the adapter lost its link")
    assert _format_text(explain(killed)).startswith(
        "task 4 on gpu51 failed first: killed by SIGABRT"
    )
    segfault = "srun: error: n02: task 5: Segmentation fault (core dumped)\n"
    assert _format_text(explain(segfault)).startswith(
        "task 5 on n02 failed first: killed by SIGSEGV"
    )


RAISED = '[rank5]: Traceback (most recent call last):\n[rank5]:   File "/d/t.py", line 8, in f\n[rank5]: ValueError: x\n'


@pytest.mark.parametrize(
    ("log", "said", "who"),
    [
        (RAISED, "rank 5: ValueError: x (/d/t.py, line 8)", ("5", "")),
        (RAISED.replace("[rank5]: ", ""), "ValueError: x (/d/t.py, line 8)", ("", "")),
        (
            f"{RAISED}hpcstack: rank 5 on gpu07 ended with 1 [0 5.0]\n",
            "rank 5 on gpu07 failed first: ValueError: x (/d/t.py, line 8)",
            ("5", "gpu07"),
        ),
        (
            "nothing to resume from\nsrun: error: gpu07: task 3: Exited with exit code 1\n",
            "task 3 on gpu07 failed first; the last line before: nothing to resume from",
            ("3", "gpu07"),
        ),
        (
            "[rank5]: step 7\nslurmstepd: error: *** JOB 7 ON gpu07 CANCELLED AT 2026-11-20T10:00:00 ***\n",
            "it was cancelled",
            ("", ""),
        ),
    ],
)
def test_who_failed_first_is_said_and_can_be_read(
    log: str, said: str, who: tuple[str, str]
) -> None:
    found = explain(log)
    assert (found.said, (found.rank, found.host)) == (said, who)
