"""Squashfs files mounted beside the image, under every runtime: what is in them, one open of the
file a container, and nothing left behind.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from support.launching import RUNTIMES, launch_apart
from support.testbed import Testbed

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.jobs("second"),
    pytest.mark.slurm,
    pytest.mark.squashfs,
]
PACK = """\
mkdir -p tests/launching/set/deep
seq 5000 | while read -r n; do echo "$n" >"tests/launching/set/deep/$n"; done
hpcstack pack tests/launching/set --output tests/launching/set.sqsh --shard 1 --force
rm -rf tests/launching/set
"""
READ = """\
total = sum(int(open(f'/data/inside/deep/{n}').read()) for n in range(1, 5001))
mounted = [line.split()[2] for line in open('/proc/mounts') if line.split()[1] == '/data/inside']
try:
    open('/data/inside/new', 'w')
except OSError as error:
    print(total, *mounted, error.errno)
"""
READ_ONLY = (30, 13)  # EROFS; EACCES where the files belong to a user that the container lacks


@pytest.fixture(scope="module")
def packed(testbed: Testbed) -> str:
    """A squashfs file of 5,000 files, in the folder that tests launch from."""
    testbed.bash(PACK)
    return "set.sqsh"


def wait_for_leftovers() -> list[str]:
    """What a step has left ten seconds after its end."""
    for _ in range(100):
        if not list_leftovers():
            return []
        time.sleep(0.1)
    return list_leftovers()


def list_leftovers() -> list[str]:
    """Processes that serve the file, and mounts of it that the machine sees."""
    seen = subprocess.run(
        ["pgrep", "-fa", "squashfuse.*set.sqsh"], capture_output=True, text=True, check=False
    ).stdout.splitlines()
    mounts = Path("/proc/mounts").read_text().splitlines()
    return seen + [line for line in mounts if "hpcstack-mounts" in line or "/places/" in line]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_packed_data_set_is_mounted(
    testbed: Testbed, built: dict[str, Any], show: str, packed: str, runtime: str
) -> None:
    testbed.bash("mkdir -p tests/launching/outer/inside")
    words = ("-N2", "--mode", "plain", "--runtime", runtime)
    mounts = ("--mount", "outer:/data", "--mount", f"{packed}:/data/inside")
    done = launch_apart(testbed, *mounts, *words, "--", "python3", "-c", READ)
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    for line in lines:
        total, kind, errno = line.split()
        assert int(total) == 5000 * 5001 // 2
        assert kind.startswith("fuse")
        assert int(errno) in READ_ONLY
    assert done.returncode == 0, done.stderr
    assert wait_for_leftovers() == []


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_killed_step_leaves_no_mount(
    testbed: Testbed, built: dict[str, Any], show: str, packed: str, runtime: str
) -> None:
    """A rank is killed while it reads, and the step ends with it."""
    program = "import os; open('/data/deep/1'); os.kill(os.getpid(), 9)"
    words = ("-N2", "--mode", "plain", "--runtime", runtime, "--mount", f"{packed}:/data")
    done = launch_apart(testbed, *words, "--", "python3", "-c", program)
    assert done.returncode == 137, done.stderr
    assert wait_for_leftovers() == []


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_file_that_is_gone_is_named(
    testbed: Testbed, built: dict[str, Any], show: str, runtime: str
) -> None:
    words = ("--mode", "plain", "--runtime", runtime, "--mount", "/nowhere/set.sqsh:/data")
    done = launch_apart(testbed, *words, "--", "true")
    assert done.returncode != 0
    assert "/nowhere/set.sqsh" in done.stderr, done.stderr


def test_a_file_of_another_kind_is_refused(
    testbed: Testbed, built: dict[str, Any], show: str
) -> None:
    testbed.give("tests/launching/set.tar", "hello")
    done = launch_apart(testbed, "--mount", "set.tar:/data", "--", "true")
    assert done.returncode == 2
    assert "hpcstack pack FOLDER" in done.stderr
