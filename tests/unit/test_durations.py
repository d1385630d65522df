"""What test functions cost: measured with what they start, added up, and held to a limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support import durations
from support.durations import Cost, find_stale_reasons, find_wrong_costs, read_rows, write_rows

TESTS = Path(__file__).parents[1]
BURN = (
    "import time\nuntil = time.process_time() + 0.3\nwhile time.process_time() < until:\n    pass\n"
)
FILE = f"""\
import subprocess, sys, time
import pytest

BURN = {BURN!r}


@pytest.fixture(scope="module")
def shared():
    exec(BURN)


@pytest.mark.parametrize("number", [1, 2])
def test_burns(number, shared):
    exec(BURN)


def test_has_a_child():
    subprocess.run([sys.executable, "-c", BURN], check=True)


def test_waits():
    time.sleep(0.3)
"""


def test_a_row_has_its_functions_cpu_and_waiting(tmp_path: Path) -> None:
    (tmp_path / "test_costs.py").write_text(FILE)
    argv = [sys.executable, "-m", "pytest", "-p", "support.durations", "-q"]
    subprocess.run(
        [*argv, "--rootdir", str(tmp_path), "--costs-to", "rows", "test_costs.py"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(TESTS)},
        check=True,
        capture_output=True,
    )
    rows = {row.name.partition("::")[2]: row for row in read_rows([tmp_path / "rows"])}
    assert rows["test_burns"].tests == 2
    assert 0.5 < rows["test_burns"].cpu < 1.4, "two tests, without what they share"
    assert rows["fixture shared"].cpu >= 0.25
    assert 0.27 < rows["test_has_a_child"].cpu < 2, "the child's, too"
    assert rows["test_waits"].waited > 0.25
    assert rows["test_waits"].cpu < 0.2


def test_files_are_added_up(tmp_path: Path) -> None:
    one = Cost("tests/a.py::test_a", tests=2, cpu=1.0, waited=2.0)
    other = Cost("tests/b.py::test_b", tests=1, cpu=4.0, waited=0.0)
    for name in ("beside", "alone"):
        write_rows([one, other], tmp_path / name)
    rows = read_rows([tmp_path / "beside", tmp_path / "alone"])
    assert [(row.name, row.tests, row.cpu, row.waited) for row in rows] == [
        ("tests/b.py::test_b", 2, 8.0, 0.0),
        ("tests/a.py::test_a", 4, 2.0, 4.0),
    ]


def test_what_costs_much_has_a_reason() -> None:
    rows = [
        Cost("a", cpu=7.6),
        Cost("b", cpu=4.9, waited=100),
        Cost("c", cpu=9.0),
        Cost("d", cpu=9.0),
        Cost("a little more", cpu=7.4),
    ]
    reasons = {"c": "it must", "d": ""}
    wrong = find_wrong_costs(rows, reasons)
    assert [line.split()[0] for line in wrong] == ["a", "d"]


def test_a_reason_is_for_what_is_there() -> None:
    here = f"tests/unit/{Path(__file__).name}::test_files_are_added_up"
    fixture = "tests/integration::fixture built"
    assert find_stale_reasons([here, fixture]) == []
    assert find_stale_reasons([f"{here}_gone", "tests/gone.py::test_a"]) == [
        f"{here}_gone is in costly.yaml, and nowhere else",
        "tests/gone.py::test_a is in costly.yaml, and nowhere else",
    ]


def test_every_reason_is_one() -> None:
    reasons = durations.read_reasons()
    assert find_stale_reasons(reasons) == []
    assert all(isinstance(why, str) and len(why) > 10 for why in reasons.values())
