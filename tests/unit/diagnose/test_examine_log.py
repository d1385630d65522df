"""A log is read once, in blocks: what is spared changes nothing of what is found."""

from __future__ import annotations

import io
import random
import tracemalloc

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from hpcstack.diagnose.examine_log import (
    NEVER,
    _LogReader,
    examine_log,
    examine_text,
    explain_log,
    join_readings,
)
from hpcstack.launch import log_lines
from hpcstack.launch.log_lines import read_log_blocks
from support.log_reading import find_failure

from ..launch.test_failure import CASES

PLAIN = [
    "step 12 loss 2.31\n", "step 13 loss 2.29\n", "  indented\n", "\n", "epoch 3: 10%|#   | 1/10\n", "10%|#\r 20%|##\r\n",
    "saved /d/ckpt-7.pt\n", "[rank0]: step 9\n", "[rank1]: step 9\n", "[rank1]: warmed up\n", "[default3]:step 4\n",
    "node12: step 9\n", "node13: Traceback (most recent call last):\n", "node13: step 7\n", "UserWarning: old\n", "[W1127 12:00:00] odd\n",
    "KeyError: 'x'\n", 'bad: row 17\n', '  File "/d/a.py", line 3, in f\n', "Traceback (most recent call last):\n",
    "[rank1]: Traceback (most recent call last):\n", '[rank1]:   File "/d/b.py", line 9, in g\n', "[rank1]: BadData: row 9\n",
    "hpcstack: rank 1 on n2 ended with 1 [0 7.5]\n", "hpcstack: rank 0 on n1 ended with 1 [0 8.5]\n", "hpcstack: start 2 of job 7\n",
]  # fmt: skip
LINES = st.sampled_from(
    [line for text, *_ in CASES.values() for line in text.splitlines(keepends=True)] + PLAIN * 4
)


@settings(max_examples=300, deadline=None)
@given(lines=st.lists(LINES, max_size=40), size=st.sampled_from([4096, 1 << 20]))
def test_what_is_spared_changes_nothing(lines: list[str], size: int) -> None:
    text = "".join(lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_lines, "BLOCK", size)
        found = examine_log(read_log_blocks(io.BytesIO(text.encode()))).failure
    whole = find_failure(text)
    for status in (1, 125, 143):
        assert found.end(status) == whole.end(status)
        assert found.read_state(status) == whole.read_state(status)
    assert found.has_a_reason == whole.has_a_reason
    assert found.line == whole.line


def test_lines_that_differ_in_numbers_alone_are_told_apart() -> None:
    xid = "NVRM: Xid (PCI:0000:01:00): {}, pid='<unknown>', name=<unknown>\n"
    found = explain_log(xid.format(48) * 3 + xid.format(95))
    assert {one.signature.id: (one.number, one.count) for one in found} == {
        "cuda-xid-48-double-bit": (1, 3),
        "cuda-xid-95-uncontained": (4, 1),
    }


def test_a_line_is_numbered_as_an_editor_does() -> None:
    ended = "hpcstack: rank 0 on n1 ended with 1 [0 5.0]"
    text = f"1%\r2%\r3%\n{'x' * 200_000}\n\na\r\nb\n{ended}\n"
    assert examine_text(text).rank_ends == 6


def test_only_the_last_start_counts() -> None:
    ecc = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    again = "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026 DUE TO JOB REQUEUE ***\n"
    reading = examine_text(f"{ecc}step 1\n{again}step 1\nValueError: x\n")
    assert [one.signature.id for one in reading.found if one.number < 3] == []
    assert reading.step_ends == 3
    reading = examine_text(f"{ecc}hpcstack: start 2 of job 7\nstep 1\n")
    assert (reading.found, reading.step_ends) == ((), NEVER)


def test_what_hpcstack_refuses_is_said_with_what_to_do() -> None:
    text = "ERROR: there is no stack 'x'\n  TIP: hpcstack list\n  READ: hpcstack help build\nbye\n"
    assert examine_text(text).refusal.splitlines() == [
        "there is no stack 'x'", "  TIP: hpcstack list", "  READ: hpcstack help build",
    ]  # fmt: skip
    assert examine_text("ERROR: of somebody else\nbye\n").refusal == ""


@pytest.mark.parametrize("kind", ["steps", "bars", "one line", "words"])
def test_a_long_log_needs_little_memory(kind: str) -> None:
    line = {
        "steps": "step 1000 loss 2.71828 lr 0.0001 tokens/s 123456\n",
        "bars": " 10%|###       | 100/1000 [00:10<01:30, 10.00it/s]\r",
        "one line": "0123456789abcdef",
        "words": "",
    }[kind]
    data = (line * (1 + (8 << 20) // max(len(line), 1))).encode()[: 8 << 20]
    if kind == "words":
        data = b"".join(b"%x is at %x\n" % (n * 7919, n * 104729) for n in range(40_000))
    data += b"\nslurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n"
    tracemalloc.start()
    reading = examine_log(read_log_blocks(io.BytesIO(data)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [one.signature.id for one in reading.found] == ["slurm-time-limit"]
    assert peak < 90 << 20, peak
    assert reading.failure.read_state(1).word == "TIMEOUT"


def test_a_hosts_name_is_a_label_from_its_traceback_on() -> None:
    text = (
        "gpu12: ValueError: bad sample 16\ngpu12: saved checkpoint 3\n"
        'gpu12: Traceback (most recent call last):\ngpu12:   File "/d/t.py", line 3, in f\n'
        "gpu12:     f()\ngpu12: ValueError: bad sample 17\ngpu12: saved checkpoint 4\n"
        "srun: error: gpu12: task 0: Exited with exit code 1\n"
    )
    said = "task 0 on gpu12 failed first: ValueError: bad sample 17 (/d/t.py, line 3)"
    assert examine_text(text).failure.end(1) == find_failure(text).end(1) == (1, said)


def test_a_new_start_behind_a_progress_bar_is_one() -> None:
    put_back = (
        "slurmstepd: error: *** JOB 77 ON g CANCELLED AT 2026-03-01T03:13:44 DUE TO JOB REQUEUE ***"
    )
    missing = "ImportError: libcudart.so.12: cannot open shared object file"
    text = f"{missing}\n\r 45%|## | 4it/s]\r{put_back}\n{missing}\n"
    assert {one.number for one in examine_text(text).found} == {2, 3}


def test_a_hole_in_a_log_is_no_utf16() -> None:
    text = "Traceback (most recent call last):\nKeyError: 1\n"
    holed = io.BytesIO(b"\0" * 5000 + text.encode())
    assert examine_log(read_log_blocks(holed)).failure.first == "KeyError: 1"


def test_two_logs_of_a_job_are_read_each_by_itself() -> None:
    out = "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB\n"
    err = "old\nhpcstack: start 2 of job 7\nhpcstack: rank 0 on n1 ended with 1 [0 5.0]\n"
    joined = join_readings([examine_text(out), examine_text(err)])
    assert joined.failure.host == "n1"
    assert [(one.signature.id, one.number) for one in joined.list_causes()] == [
        ("cuda-out-of-memory", 1)
    ]
    assert join_readings([]).found == ()


def test_names_of_hexadecimal_digits_make_no_new_form() -> None:
    """vLLM names each request so: 300,000 of them took 12 s."""
    reader = _LogReader()
    numbers = random.Random(1)
    lines = [f"INFO Added request chatcmpl-{numbers.getrandbits(128):032x}." for _ in range(500)]
    reader.feed("\n".join([*lines, "INFO feedback added", ""]).encode())
    assert len(reader.forms) == 2


def test_of_two_logs_that_counts_which_knows_most() -> None:
    trace = 'Traceback (most recent call last):\n  File "/d/t.py", line 8, in f\n'
    stdout = f"{trace}ReadTimeout: x\nretrying in 5 s\n"
    stderr = f"{trace}KeyError: 'a'\nsrun: error: n1: task 0: Exited with exit code 1\n"
    both = join_readings([examine_text(stdout), examine_text(stderr)])
    assert both.failure.first == "task 0 on n1 failed first: KeyError: 'a' (/d/t.py, line 8)"
