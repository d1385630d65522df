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

pytestmark = [pytest.mark.testbed, pytest.mark.slurm]
TIMES = int(os.environ.get("HPCSTACK_TIMES", "1"))
RUNTIMES = [pytest.param(one, marks=getattr(pytest.mark, one)) for one in ("apptainer", "pyxis", "enroot")]
HANGS = """\
import sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
def sync(value):
    dist.all_reduce(value)
for step in range(5):
    odd = step == 3 and dist.get_rank() == 3
    if odd and sys.argv[1] == "sleeps":
        time.sleep(100)
    if odd and sys.argv[1] == "other":
        dist.broadcast(torch.ones(1), 0)
    if not (odd and sys.argv[1] == "skips"):
        sync(torch.ones(1))
    if odd and sys.argv[1] == "skips":
        sys.stdin.read() if not sys.stdin.isatty() else None
        time.sleep(100)
    if dist.get_rank() == 0:
        print("step", step, flush=True)
dist.barrier()
"""
SAYS = {
    "sleeps": ("hangs.py:9,", "all_reduce"),
    "other": ("in broadcast, called at", "all_reduce"),
    "skips": ("hangs.py:16,", "in "),
}


@pytest.fixture(scope="module")
def hangs(testbed: Testbed, built: dict[str, Any]) -> str:
    return str(testbed.give("tests/launching/hangs.py", HANGS))


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("fault", SAYS)
def test_the_odd_rank_is_named_while_it_hangs(testbed: Testbed, hangs: str, runtime: str, fault: str) -> None:
    if fault != "sleeps" and runtime != "apptainer" and TIMES == 1:
        pytest.skip("ci/soak: each fault by each runtime")
    for number in range(TIMES):
        words = f"pytorch-24.11 -N2 --nproc-per-node 2 --runtime {runtime} --time 3 --batch -- hangs.py {fault}"
        job = testbed.bash(f"cd tests/launching && hpcstack launch {words}").stdout.strip()
        try:
            _until_it_hangs(testbed, job)
            done = testbed.run("hpcstack", "hang", job)
            where, others = SAYS[fault]
            assert done.returncode == 1 and "ODD: rank 3 on node2 is" in done.stdout, (number, done.stdout, done.stderr)
            odd = done.stdout.partition("ODD: ")[2]
            assert where in odd and others in odd and "while 3 ranks are" in odd, (number, done.stdout)
            assert "/sleeps" not in testbed.bash(f"squeue -h --jobs {job} -o %T").stdout, "nothing happened to it"
        finally:
            testbed.bash(f"scancel {job}; while squeue -h --jobs {job} 2>/dev/null | grep -q .; do sleep 0.3; done")


def _until_it_hangs(testbed: Testbed, job: str) -> None:
    until = time.monotonic() + 90
    while "step 2" not in testbed.bash(f"cat tests/launching/*-{job}.out 2>/dev/null || true").stdout:
        assert time.monotonic() < until, "it does not run"
        time.sleep(0.5)
    time.sleep(1.5)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_launch_that_writes_nothing_is_ended_and_says_why(testbed: Testbed, hangs: str, runtime: str) -> None:
    for _ in range(TIMES):
        state = f"tests/launching/watchdog-{runtime}"
        words = ("-N2", "--nproc-per-node", "2", "--runtime", runtime, "--watchdog", "12", "--", "hangs.py", "sleeps")
        done: subprocess.CompletedProcess[str] = launch(testbed, *words, XDG_STATE_HOME=f"{testbed.home}/{state}")
        assert done.returncode == 124, done.stderr[-3000:]
        assert done.stderr.rstrip().splitlines()[-1] == "hpcstack: nothing was written for 12 s; exit 124"
        told = testbed.bash(f"XDG_STATE_HOME=$PWD/{state} hpcstack explain").stdout
        assert told.startswith("nothing was written for 12 s\n") and "ODD: rank 3 on node2 is at" in told, told
