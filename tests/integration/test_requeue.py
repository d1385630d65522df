"""A batch job whose node is to blame starts again without it (launch --requeue-without, requeue)."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.testbed import Testbed

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.alone,
    pytest.mark.slurm,
    pytest.mark.apptainer,
]
EVERYTHING = os.environ.get("HPCSTACK_TABLE") == "all"


@pytest.fixture
def only_on_node2(testbed: Testbed) -> Iterator[Path]:
    """A site whose jobs mount a folder that is on node2 alone: node1 is not fit for them."""
    fit = testbed.folder / "nodes/node2/tmp/fit"  # /tmp as node2 has it
    fit.mkdir(exist_ok=True)
    fit.chmod(0o777)
    yield testbed.give("requeue/site.yaml", 'mounts: ["/tmp/fit:/fit"]\n')
    fit.rmdir()


def submit(testbed: Testbed, site: Path, *options: str, script: str) -> str:
    argv = ("launch", "pytorch-24.11", "-N", "1", "--mode", "plain", "--runtime", "apptainer")
    words = ("hpcstack", "--site", str(site), *argv, *options, "--batch", "--", "sh", "-c", script)
    return testbed.bash(f"cd {site.parent} && {shlex.join(words)}").stdout.strip().splitlines()[-1]


def show(testbed: Testbed, job: str) -> dict[str, str]:
    said = testbed.bash(f"scontrol -o show job {job}").stdout
    return dict(re.findall(r"(\w+)=(\S*)", said))


def wait_for(testbed: Testbed, job: str, seconds: float, **wanted: str) -> dict[str, str]:
    until = time.monotonic() + seconds
    while True:
        found = show(testbed, job)
        if all(found.get(name) == value for name, value in wanted.items()):
            return found
        assert time.monotonic() < until, (found, wanted)
        time.sleep(1)


def read_output(testbed: Testbed, site: Path, job: str) -> str:
    return testbed.bash(f"cat {site.parent}/*-{job}.out").stdout


def cancel(testbed: Testbed, job: str) -> None:
    testbed.bash(
        f"scancel {job}; while squeue -h --jobs {job} 2>/dev/null | grep -q .; do sleep 0.5; done"
    )


def test_a_job_whose_node_is_not_fit_starts_again_without_it(
    testbed: Testbed, built: dict[str, Any], only_on_node2: Path
) -> None:
    job = submit(
        testbed, only_on_node2, "--requeue-without", script="echo done on $SLURMD_NODENAME"
    )
    try:
        wait_for(testbed, job, 90, ExcNodeList="node1", Restarts="1", JobState="PENDING")
        said = read_output(testbed, only_on_node2, job)
        assert f"hpcstack: job {job} is requeued without node1" in said, said
        assert "node1: /tmp/fit is not here (health)" in said
        if EVERYTHING:  # Slurm lets it start two minutes later
            wait_for(testbed, job, 400, JobState="COMPLETED")
            said = read_output(testbed, only_on_node2, job)
            assert "done on node2" in said, said
            assert "is requeued without node1" in said, "what it wrote before is still there"
    finally:
        cancel(testbed, job)


def test_a_programs_own_failure_does_not_requeue_it(
    testbed: Testbed, built: dict[str, Any]
) -> None:
    site = testbed.give("requeue-own/site.yaml", "name: testbed\n")
    job = submit(testbed, site, "--requeue-without", script="echo Traceback; exit 3")
    found = wait_for(testbed, job, 90, JobState="FAILED")
    assert (found["ExitCode"], found["Restarts"]) == ("3:0", "0")
    said = read_output(testbed, site, job)
    assert f"job {job} is not requeued: no node stands out" in said, said


def test_a_user_names_the_node(testbed: Testbed, built: dict[str, Any]) -> None:
    site = testbed.give("requeue-named/site.yaml", "name: testbed\n")
    job = submit(testbed, site, script="sleep 120")
    try:
        found = wait_for(testbed, job, 60, JobState="RUNNING")
        node = found["NodeList"]
        none = testbed.run("hpcstack", "requeue", job)
        assert none.returncode == 1, none.stdout + none.stderr
        assert "no node stands out" in none.stderr
        dry = testbed.json("requeue", job, "--without", node, "--dry-run")
        assert dry == {
            "job": job,
            "requeued": False,
            "without": [{"node": node, "by": "user", "why": "as you say"}],
        }
        assert show(testbed, job)["JobState"] == "RUNNING"
        testbed.hpcstack("requeue", job, "--without", node)
        wait_for(testbed, job, 60, ExcNodeList=node, JobState="PENDING")
        again = testbed.run("hpcstack", "requeue", job)
        assert again.returncode == 2
        assert f"job {job} is PENDING" in again.stderr
    finally:
        cancel(testbed, job)
