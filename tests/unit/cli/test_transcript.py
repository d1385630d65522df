"""README's transcript is made by ci/transcript, and shows what ci/quickstart runs."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import subprocess
import sys
from typing import Any

import pytest

from support.testbed import REPO


@pytest.fixture
def transcript() -> Any:
    loader = importlib.machinery.SourceFileLoader("transcript", str(REPO / "ci/transcript"))
    spec = importlib.util.spec_from_loader("transcript", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def shown(transcript: Any) -> str:
    block = transcript.BLOCK.search((REPO / "README.md").read_text())
    assert block
    return str(block[2])


def test_the_readme_shows_commands_of_the_quickstart() -> None:
    done = subprocess.run(
        [sys.executable, str(REPO / "ci/transcript"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_a_command_with_other_options_is_told(transcript: Any) -> None:
    block = shown(transcript).replace(" --tier standard", "")
    (wrong,) = transcript.find_differences(block)
    assert "`hpcstack test pytorch-24.11 -N 2`" in wrong


def test_answers_are_compared_but_not_their_times_and_digests(transcript: Any) -> None:
    log = (
        "$ hpcstack build pytorch-24.11\n* step 1/1\n"
        f"  built, 341 MB, sha256 {'a' * 64}\n\nci/quickstart: PASS in 121 s\n"
    )
    block = transcript.make_block(log)
    other = log.replace("341 MB", "99 MB").replace("a" * 64, "b" * 64).replace("121 s", "7 s")
    assert transcript.find_differences(block, other) == []
    (wrong,) = transcript.find_differences(block, other.replace("step 1/1", "step 1/2"))
    assert wrong == "README.md says `* step 1/1`, the log `* step 1/2`"


def test_a_long_answer_is_shortened(transcript: Any) -> None:
    answer = [f"line {n}" for n in range(60)]
    log = (
        "* up\n\n\x1b[1m$ hpcstack lock a\x1b[0m\n"
        + "\n".join(answer)
        + "\n\n== 3/7 build (1 s)\n\n$ ls\nx\n$ module load a\nloaded\n"
    )
    first, second = transcript.commands(log)
    assert first.splitlines() == ["$ hpcstack lock a", *answer[:4], "...", *answer[-1:]]
    assert second == "$ module load a\nloaded"


def test_of_a_report_the_lines_of_some_checks_are_kept(transcript: Any) -> None:
    lines = [*map(str, range(6)), "PASS  node.shm  1 GB", "PASS  ddp.fp32    right", "", "PASS"]
    shortened = transcript.shorten("hpcstack test a", lines)
    assert shortened == [*lines[:6], "PASS  ddp.fp32    right", "...", "PASS"]


def test_what_differs_from_one_run_to_the_next_is_left_out(transcript: Any) -> None:
    lines = [
        "* importing a base",
        "* 12 checks done, 30 s",
        "* left out: an index",
        "[W1 torch]",
        "a",
    ]
    assert transcript.shorten("hpcstack lock a", lines) == ["a"]


def test_a_long_line_is_cut(transcript: Any) -> None:
    assert transcript.shorten("hpcstack lock a", ["x" * 200]) == ["x" * 97 + "..."]
