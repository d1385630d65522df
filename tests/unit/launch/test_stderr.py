"""What of a step's stderr is shown: one traceback of the rank that failed first, and nothing of
what follows.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstack.launch.failure import Failure
from hpcstack.launch.stderr import HELD_S, Screen, Stderr

ENDED = "hpcstack: rank {} on n1 ended with {} [0 {}]\n"
TRACE = (
    'Traceback (most recent call last):\n  File "/x/t.py", line 3, in <module>\n    lr = '
    "rate\nNameError: rate\n"
)
TORCHRUN = (
    'Traceback (most recent call last):\n  File "/usr/bin/torchrun", line 8\nChildFailedError: '
    "\nsrun: error: x\n"
)


class Now:
    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


class Shown:
    """A step whose stderr somebody watches."""

    def __init__(self, folder: Path) -> None:
        self.now, self.failure = Now(), Failure()
        self.screen = Screen(self.failure, clock=self.now)
        self.errors = Stderr(folder, self.failure.feed, self.screen)

    def says(self, *texts: str) -> str:
        return b"".join(self.errors.feed(text.encode()) for text in texts).decode()

    def after(self, seconds: float) -> str:
        self.now.at += seconds
        return self.errors.release().decode()

    def ends(self) -> str:
        return self.errors.end().decode()


@pytest.fixture
def step(tmp_path: Path) -> Shown:
    return Shown(tmp_path)


def test_what_is_no_failure_is_shown_as_it_comes(step: Shown) -> None:
    assert (
        step.says("loading\n", "10%|#   ", "\r20%|##  ", "\ndone\n")
        == "loading\n10%|#   \r20%|##  \ndone\n"
    )
    assert step.ends() == ""
    assert step.screen.left_out == 0


def test_one_slip_of_eight_ranks_is_one_traceback(step: Shown) -> None:
    traces = [TRACE.splitlines(keepends=True)] * 8
    mixed = "".join(line for lines in zip(*traces, strict=True) for line in lines)
    shown = step.says(
        "loading\n", mixed, *(ENDED.format(rank, 1, 1.0 + rank) for rank in range(8)), TORCHRUN
    )
    assert shown + step.ends() == "loading\n" + TRACE
    assert step.screen.left_out == 7 * 4 + 8 + 4


def test_of_several_tracebacks_that_of_the_first_rank_is_shown(step: Shown) -> None:
    def of(rank: int) -> str:
        return "".join(
            f"[rank{rank}]: {line}\n" for line in TRACE.replace("rate", f"rate{rank}").splitlines()
        )

    step.says(of(1), of(0), ENDED.format(0, 1, 2.0), ENDED.format(1, 1, 1.0))
    assert step.after(HELD_S) == of(1)


CHAINED = """\
Traceback (most recent call last):
  File "/x/t.py", line 3, in f
    return self._call_impl(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/x/t.py", line 3, in f
    return self._call_impl(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
KeyError: 1

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/x/t.py", line 9, in g
    return self._call_impl(*args, **kwargs)
ValueError: 2
"""


@pytest.mark.parametrize("copies", [1, 4])
def test_what_a_traceback_repeats_itself_stays(step: Shown, copies: int) -> None:
    step.says(CHAINED * copies, *(ENDED.format(rank, 1, 1.0 + rank) for rank in range(copies)))
    assert step.after(HELD_S) == CHAINED


def test_a_bar_is_shown_for_hours(step: Shown) -> None:
    for words in ("Training", "Fetching 30 files", "[1/10] loading", "hours"):
        shown = "".join(step.says(f"\r{words}: {n:5d}%|####      |") for n in range(12000))
        assert len(shown) >= 11000 * len(words), words
        step.says("\n")


def test_a_traceback_that_nobody_ends_of_is_shown_in_a_moment(step: Shown) -> None:
    assert step.says(TRACE) == ""
    assert step.after(HELD_S) == TRACE
    assert step.says("goes on\n") == "goes on\n"


def test_after_ctrl_c_ranks_that_end_one_after_another_are_one_traceback(step: Shown) -> None:
    """A rank's first line may come when the one before is due: it parts no traceback."""
    step.screen.interrupted = True
    shown = ""
    for _rank in range(4):
        for line in TRACE.splitlines(keepends=True):
            shown += step.says(line)
        step.now.at += HELD_S + 0.1
    assert shown + step.ends() == TRACE


@pytest.mark.parametrize("speaker", ["slurmstepd-n1: ", "[2026-11-26T12:48:15.248] ", ""])
def test_what_slurm_says_of_memory_is_shown_whenever_it_comes(step: Shown, speaker: str) -> None:
    oom = (
        f"{speaker}error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks "
        "have been OOM Killed.\n"
    )
    step.says("Killed\n", ENDED.format(0, 137, 1.0))
    step.after(HELD_S)
    assert step.says(TORCHRUN, oom) == oom


def test_all_of_it_is_kept(step: Shown, tmp_path: Path) -> None:
    said = "loading\n" + TRACE + ENDED.format(0, 1, 1.0) + TORCHRUN
    step.says(said)
    step.ends()
    assert (tmp_path / "stderr.log").read_text() == said


@given(chunks=st.lists(st.text("Trace\n[rk0]: 1%|\r", max_size=30), max_size=20))
def test_without_a_failure_every_byte_is_shown_in_order(
    chunks: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    step = Shown(tmp_path_factory.mktemp("step"))
    assert step.says(*chunks) + step.ends() == "".join(chunks)
