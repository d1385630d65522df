"""Tests of one lane run one after another, in one worker, however slow a worker is to write the
lanes down.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
SLOW_TO_WRITE = """\
import os, time
from pathlib import Path

rename = Path.replace


def slow_rename(source, target):
    if Path(target).name == "lanes.json":
        time.sleep(1)
    return rename(source, target)


if "PYTEST_XDIST_WORKER" in os.environ:
    Path.replace = slow_rename
"""
FILE = """\
import os
import pytest

@pytest.mark.parametrize("number", range(4))
def test_it(number, record):
    record(os.environ["PYTEST_XDIST_WORKER"])
"""
RECORD = """

import pytest


@pytest.fixture
def record(request):
    def write(worker):
        name = Path(request.node.path).stem
        with open(Path(request.config.rootpath) / "workers", "a") as file:
            file.write(f"{name} {worker}\\n")

    return write
"""


def test_a_file_is_one_workers(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(SLOW_TO_WRITE + RECORD)
    for name in ("one", "two", "three"):
        (tmp_path / f"test_{name}.py").write_text(FILE)

    argv = [sys.executable, "-m", "pytest", "-p", "support.lanes", "-q", "--rootdir", str(tmp_path)]
    spread = ["-n", "2", "--dist", "loadscope", "--no-loadscope-reorder"]
    done = subprocess.run(
        [*argv, *spread, str(tmp_path)],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

    ran = [tuple(line.split()) for line in (tmp_path / "workers").read_text().splitlines()]
    assert len(ran) == 12
    assert len(set(ran)) == 3, f"a file's tests ran in more than one worker: {sorted(set(ran))}"
