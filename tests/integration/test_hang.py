"""A job that hangs: who is not where the others are, while it runs (hang) and when nothing is written (--watchdog).

HPCSTACK_TIMES is how often each is tried.
"""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any

import pytest

from support.launching import launch
from support.testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.jobs, pytest.mark.slurm]
TIMES = int(os.environ.get("HPCSTACK_TIMES", "1"))
EVERYTHING = os.environ.get("HPCSTACK_TABLE") == "all"
RUNTIMES = [pytest.param(one, marks=getattr(pytest.mark, one)) for one in ("apptainer", "pyxis", "enroot")]
HANGS = """\
import sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
def sync(value):
    dist.all_reduce(value)
for step in range(5):
    odd = sys.argv[1] if step == 3 and dist.get_rank() == 3 else ""
    if odd == "sleeps":
        time.sleep(100)
    if odd == "other":
        dist.broadcast(torch.ones(1), 0)
    if odd != "skips":
        sync(torch.ones(1))
    if dist.get_rank() == 0:
        print("step", step, flush=True)
dist.barrier()
"""
SAYS = {
    "sleeps": "at {}/hangs.py:9,",
    "other": "in broadcast, called at {}/hangs.py:11,",
    "skips": "in barrier, called at {}/hangs.py:16,",
}
# In each run of the tests one of each runtime; all of it in ci/soak
ALL = [
    pytest.param(runtime, fault, marks=getattr(pytest.mark, runtime))
    for runtime in ("apptainer", "pyxis", "enroot")
    for fault in SAYS
    if EVERYTHING or (runtime, fault) in (("apptainer", "other"), ("pyxis", "sleeps"), ("enroot", "skips"))
]


@pytest.fixture(scope="module")
def hangs(testbed: Testbed, built: dict[str, Any]) -> str:
    return str(testbed.give("tests/launching/hangs.py", HANGS))


@pytest.mark.parametrize(("runtime", "fault"), ALL)
def test_the_odd_rank_is_named_while_it_hangs(testbed: Testbed, hangs: str, runtime: str, fault: str) -> None:
    for number in range(TIMES):
        words = f"pytorch-24.11 -N2 --nproc-per-node 2 --runtime {runtime} --time 3 --batch -- hangs.py {fault}"
        job = testbed.bash(
            f"export XDG_STATE_HOME=$PWD/tests/launching/hang && cd tests/launching && hpcstack launch {words}"
        ).stdout.strip()
        try:
            _until_it_hangs(testbed, job)
            done = testbed.run("hpcstack", "hang", job)
            said = f"ODD: rank 3 on node2 is {SAYS[fault].format(hangs.rpartition('/')[0])} while 3 ranks are in all_reduce"
            assert done.returncode == 1 and said in done.stdout, (number, done.stdout, done.stderr)
            assert testbed.bash(f"squeue -h --jobs {job} -o %T").stdout.strip() == "RUNNING", "nothing happened to it"
        finally:
            testbed.bash(f"scancel {job}; while squeue -h --jobs {job} 2>/dev/null | grep -q .; do sleep 0.3; done")


def _until_it_hangs(testbed: Testbed, job: str) -> None:
    until = time.monotonic() + 90
    while "step 2" not in testbed.bash(f"cat tests/launching/*-{job}.out 2>/dev/null || true").stdout:
        assert time.monotonic() < until, "it does not run"
        time.sleep(0.5)
    time.sleep(1.5)


# By Apptainer, too, docs/first-hour.md is run by test_pages
@pytest.mark.parametrize("runtime", RUNTIMES if EVERYTHING else RUNTIMES[1:])
def test_a_launch_that_writes_nothing_is_ended_and_says_why(testbed: Testbed, hangs: str, runtime: str) -> None:
    for _ in range(TIMES):
        state = f"tests/launching/watchdog-{runtime}"
        words = ("-N2", "--nproc-per-node", "2", "--runtime", runtime, "--watchdog", "12", "--", "hangs.py", "sleeps")
        done: subprocess.CompletedProcess[str] = launch(testbed, *words, XDG_STATE_HOME=f"{testbed.home}/{state}")
        assert done.returncode == 124, done.stderr[-3000:]
        assert done.stderr.rstrip().splitlines()[-1] == "hpcstack: nothing was written for 12 s; exit 124"
        told = testbed.bash(f"XDG_STATE_HOME=$PWD/{state} hpcstack explain").stdout
        assert told.startswith("nothing was written for 12 s\n") and "ODD: rank 3 on node2 is at" in told, told
