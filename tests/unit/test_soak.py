"""What ci/test leaves out is run by ci/soak, and something holds its promise in ci/test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support import soak

TESTS = Path(__file__).parents[1]
RULES = """\
import pytest

cheap = [1, pytest.param(2, marks=pytest.mark.soak("1 shows it"))]


@pytest.mark.parametrize("number", cheap)
def test_crossing(number):
    pass


@pytest.mark.soak("2 shows it", but=lambda number: number == 2)
@pytest.mark.parametrize("number", [1, 2])
def test_all_but_one(number):
    pass


@pytest.mark.soak("a minute", kept="unit/test_soak.py::test_which_run")
def test_whole():
    pass
"""


def run(folder: Path, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_rules.py").write_text(text)
    argv = [sys.executable, "-m", "pytest", "-p", "support.soak", "-vv", "--rootdir", str(folder)]
    return subprocess.run(
        [*argv, *words],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "ran"),
    [
        ((), {"test_crossing[1]", "test_all_but_one[2]"}),
        (("--soak", "only"), {"test_crossing[2]", "test_whole", "test_all_but_one[1]"}),
        (("test_rules.py::test_crossing[2]",), {"test_crossing[2]"}),
    ],
)
def test_which_run(tmp_path: Path, words: tuple[str, ...], ran: set[str]) -> None:
    text = RULES.replace("unit/test_soak.py", "tests/unit/test_soak.py")
    done = run(tmp_path, text, *words)
    passed = {
        line.split("::")[1].split()[0] for line in done.stdout.splitlines() if " PASSED" in line
    }
    assert passed == ran, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("mark", "says"),
    [
        ("()", 'soak("why ci/test has enough without it")'),
        ('("a minute")', "nothing of it is left in ci/test, and it has no `kept`"),
        ('("a minute", kept="tests/unit/test_soak.py::test_gone")', "is not there"),
    ],
)
def test_a_mark_that_loses_a_promise_ends_the_run(tmp_path: Path, mark: str, says: str) -> None:
    text = f"import pytest\n\n\n@pytest.mark.soak{mark}\ndef test_it():\n    pass\n"
    done = run(tmp_path, text)
    assert done.returncode == 4, done.stdout
    assert says in done.stdout + done.stderr


def test_soak_runs_what_is_marked() -> None:
    """ci/soak asks for the marks, and leaves nothing else out."""
    text = (soak.REPO / "ci/soak").read_text()
    assert "--collect-only --soak only tests" in text
    assert "PYTEST_ADDOPTS=--soak=all" in text
