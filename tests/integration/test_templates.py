"""Each job script that users copy, submitted and run as they would."""

from __future__ import annotations

import json
import os
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcstack.core.names import TEMPLATES
from support.testbed import Testbed

STACK = "pytorch-24.11"
FOLDER = "tests/templates"
TRAIN = """\
import argparse, os, signal, sys, threading, time
from pathlib import Path
import torch
import torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--seed", default=os.environ.get("SLURM_ARRAY_TASK_ID", "0"))
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--local_rank")
said = parser.parse_args()
stop = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: stop.set())
dist.init_process_group("gloo")
for step in range(said.steps):
    total = torch.ones(1)
    dist.all_reduce(total)
    if said.steps > 3:
        print("step", flush=True)
        time.sleep(0.5)
    flag = torch.tensor([float(stop.is_set())])
    dist.all_reduce(flag)
    if flag.item() and dist.get_rank() == 0:
        Path(os.environ["REQUEUE"]).touch()
    if flag.item():
        break
if "LOGDIR" in os.environ and dist.get_rank() == 0:
    from torch.utils.tensorboard import SummaryWriter
    with SummaryWriter(os.environ["LOGDIR"]) as writer:
        writer.add_scalar("loss", 1.0, 0)
    time.sleep(15)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} seed {said.seed} sum {total.item():.0f}", flush=True)
dist.destroy_process_group()
"""
pytestmark = [pytest.mark.testbed, pytest.mark.slurm, pytest.mark.apptainer, pytest.mark.shellcheck]


class Jobs:
    """Submits templates in a folder of the test's own."""

    def __init__(self, testbed: Testbed) -> None:
        self.testbed = testbed
        self.submitted: list[str] = []
        testbed.give(f"{FOLDER}/train.py", TRAIN)
        # of jobs of an earlier testbed, which had the same numbers; another lane's jobs write here
        # now
        self.bash("find . -maxdepth 1 -name '*.out' -mmin +15 -delete")

    def bash(self, script: str, *words: str, check: bool = True) -> str:
        return self.testbed.bash(
            f"cd {FOLDER} && export XDG_STATE_HOME=$PWD/state && {script}", *words, check=check
        ).stdout

    def submit(
        self, template: str, *words: str, stack: str = STACK, more: str = "", first: str = ""
    ) -> str:
        """The number of a job of TEMPLATE, which is what it says, but for two ranks on nodes
        without a GPU.

        MORE are words for `--template`, FIRST is a line that the job begins with.
        """
        made = (
            f"hpcstack launch {stack} --template {template} {more} >{template}.sbatch && "
            f"shellcheck {template}.sbatch"
        )
        self.bash(made + (f" && sed -i '/^set -euo/a {first}' {template}.sbatch" if first else ""))
        job = self.bash(f'sbatch --parsable --time=5 {template}.sbatch "$@"', *words).strip()
        self.submitted.append(job)
        return job

    def state(self, job: str) -> str:
        return self.bash(f"squeue --noheader --jobs {job} --format %T 2>/dev/null || true").strip()

    def output(self, job: str) -> str:
        return self.bash(f"cat ./*-{job}.out ./*-{job}_*.out 2>/dev/null || true")

    def until(self, job: str, wanted: str, seconds: float = 120) -> str:
        """The job's output once WANTED is in it; for nothing once the job has ended."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            said = self.output(job)
            ended = not self.state(job)
            if (wanted and wanted in said) or (not wanted and ended):
                return self.output(job)
            assert not ended, said
            time.sleep(0.5)
        raise AssertionError(f"job {job} did not say {wanted!r}:\n{self.output(job)}")


@pytest.fixture(scope="module")
def jobs(testbed: Testbed, built: dict[str, Any]) -> Iterator[Jobs]:
    jobs = Jobs(testbed)
    yield jobs
    if (
        jobs.submitted
    ):  # a test that failed leaves no job, which would be started again on the nodes of others
        jobs.bash(f"scancel {' '.join(jobs.submitted)}", check=False)


def ranks(said: str) -> list[str]:
    return sorted(re.findall(r"^rank .*$", said, re.MULTILINE))


@pytest.mark.jobs
@pytest.mark.parametrize("template", ["ddp", "deepspeed"])
@pytest.mark.soak(
    "modes differ in the image: launches by each stand in ci/test",
    but=lambda template: template == "ddp",
)
def test_training(jobs: Jobs, template: str) -> None:
    said = jobs.until(jobs.submit(template, "train.py"), "")
    assert ranks(said) == ["rank 0 of 2 seed 0 sum 2", "rank 1 of 2 seed 0 sum 2"], said


# Not beside others: test_release_verbs retires this stack for a moment.
@pytest.mark.pmix
@pytest.mark.soak(
    "its text is judged whole; ddp and checkpoint-requeue are run",
    kept="tests/unit/render/test_job_template.py::test_each_script_is_whole",
)
def test_mpi(jobs: Jobs, mpi_stack: str) -> None:
    program = (
        "from mpi4py import MPI; w = MPI.COMM_WORLD; print(f'rank {w.rank} of {w.size} sum "
        "{w.allreduce(1)}', flush=True)"
    )
    said = jobs.until(jobs.submit("mpi", "python3", "-c", program, stack=mpi_stack), "")
    assert ranks(said) == [f"rank {n} of 4 sum 4" for n in range(4)], said


@pytest.mark.jobs
@pytest.mark.soak(
    "its text is judged whole; ddp and checkpoint-requeue are run",
    kept="tests/unit/render/test_job_template.py::test_each_script_is_whole",
)
def test_array(jobs: Jobs) -> None:
    said = jobs.until(jobs.submit("array", "train.py"), "")
    assert ranks(said) == [f"rank 0 of 1 seed {n} sum 1" for n in range(4)], said


ALL = os.environ.get("HPCSTACK_TABLE") == "all"
RUNTIMES = (
    ("apptainer", "pyxis", "enroot", "podman", "charliecloud") if ALL else ("pyxis", "apptainer")
)


@pytest.mark.jobs
@pytest.mark.parametrize(
    "runtime", [pytest.param(one, marks=getattr(pytest.mark, one)) for one in RUNTIMES]
)
def test_checkpoint_and_requeue(jobs: Jobs, runtime: str) -> None:
    """The ranks are told two minutes before the end; here the end is said to be near. ci/soak:
    every runtime, again.
    """
    for number in range(int(os.environ.get("HPCSTACK_TIMES", "1"))):
        near = "export HPCSTACK_END=$(($(date +%s) + 132)) HPCSTACK_END_JOB=$SLURM_JOB_ID"
        job = jobs.submit(
            "checkpoint-requeue",
            "train.py",
            "--steps",
            "60",
            more=f"--runtime {runtime}",
            first=near,
        )
        said = jobs.until(job, "goes on later: restart 1")
        assert ranks(said) == ["rank 0 of 2 seed 0 sum 2", "rank 1 of 2 seed 0 sum 2"], (
            number,
            said,
        )
        until = time.monotonic() + 30
        while jobs.state(job) != "PENDING" and time.monotonic() < until:
            time.sleep(0.5)
        assert jobs.state(job) == "PENDING", "it waits to be started again"
        if ALL:  # not at once: the credential of the first run was revoked this second
            jobs.bash(f"scontrol update jobid={job} starttime=now+4")
            jobs.until(job, "goes on later: restart 2", 180)
        jobs.bash(f"scancel {job}")


@pytest.mark.jobs
@pytest.mark.soak(
    "its text is judged whole; ddp and checkpoint-requeue are run",
    kept="tests/unit/render/test_job_template.py::test_each_script_is_whole",
)
def test_monitoring(jobs: Jobs) -> None:
    job = jobs.submit("monitoring", "train.py")
    said = jobs.until(job, "")
    assert len(ranks(said)) == 2, said
    for node in ("node1", "node2"):
        lines = jobs.bash(f"cat monitoring-{job}/{node}.csv").splitlines()
        assert lines[0].startswith("time,load,available MiB")
        assert re.match(r"\d{4}-.*Z,\d+\.\d+,\d+,", lines[1])


@pytest.mark.jobs
@pytest.mark.soak(
    "its text is judged whole; ddp and checkpoint-requeue are run",
    kept="tests/unit/render/test_job_template.py::test_each_script_is_whole",
)
def test_jupyter(jobs: Jobs, testbed: Testbed) -> None:
    """It answers on the node, to who has the token, and the token is not in the job's output."""
    jobs.bash(
        f"hpcstack launch {STACK} --runtime local --with jupyterlab --mode plain -- true 2>&1"
    )
    job = jobs.submit("jupyter")
    said = jobs.until(job, "in its browser")
    port = int(re.search(r"localhost:(\d+)", said)[1])  # type: ignore[index]
    secret = Path(re.search(r"cat (\S+)", said)[1])  # type: ignore[index]
    token, node = (
        secret.read_text(),
        jobs.bash(f"squeue --noheader --jobs {job} --format %N").strip(),
    )
    assert len(token) == 48
    assert token not in said
    assert secret.stat().st_mode & 0o777 == 0o600
    address = _address(testbed, node)
    assert json.loads(_get(f"http://{address}:{port}/api/status?token={token}"))["kernels"] == 0
    with pytest.raises(AssertionError, match="403"):
        _get(f"http://{address}:{port}/api/status?token=guess", seconds=3)
    jobs.bash(f"scancel {job}")
    jobs.until(job, "", 60)
    assert token not in jobs.output(job)
    assert not secret.exists()


GET = """\
import sys, time, urllib.request
for _ in range(120):
    try:
        print(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(sys.argv[1]).read().decode())
        break
    except OSError:
        time.sleep(0.5)
"""


@pytest.mark.jobs
@pytest.mark.soak(
    "its text is judged whole; ddp and checkpoint-requeue are run",
    kept="tests/unit/render/test_job_template.py::test_each_script_is_whole",
)
def test_tensorboard(jobs: Jobs, testbed: Testbed) -> None:
    jobs.bash(
        f"hpcstack launch {STACK} --runtime local --with tensorboard --mode plain -- true 2>&1"
    )
    job = jobs.submit("tensorboard", "train.py")
    said = jobs.until(job, "in its browser")
    port = int(re.search(r"in its browser: *http://localhost:(\d+)", said)[1])  # type: ignore[index]
    get = testbed.give("tests/templates/get.py", GET)
    url = f"http://localhost:{port}/data/plugin/scalars/tags"
    step = f"srun --overlap --jobid {job} -N1 -n1 -w {_first(jobs, job)} python3 {get} {url}"
    answer = jobs.bash(step, check=False)
    assert '"loss"' in answer or "{" in answer, answer
    assert len(ranks(jobs.until(job, ""))) == 2


def _first(jobs: Jobs, job: str) -> str:
    return jobs.bash(
        f"scontrol show hostnames $(squeue --noheader --jobs {job} --format %N)"
    ).split()[0]


def _address(testbed: Testbed, node: str) -> str:
    return testbed.bash(
        f"scontrol show node {node} | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p'"
    ).stdout.strip()


def _get(url: str, seconds: float = 60) -> bytes:
    """What URL answers, once it does."""
    until, last = time.monotonic() + seconds, ""
    while time.monotonic() < until:
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
                url, timeout=5
            ) as answer:
                return bytes(answer.read())
        except OSError as error:
            last = str(error)
            time.sleep(0.5)
    raise AssertionError(last)


def test_every_template_was_run() -> None:
    ran = {
        "ddp",
        "deepspeed",
        "mpi",
        "array",
        "checkpoint-requeue",
        "monitoring",
        "jupyter",
        "tensorboard",
    }
    assert ran == set(TEMPLATES)
