"""`explain`, `logs` and `jobs` of jobs that have failed: the cause first, nothing wrong behind it,
also once Slurm has forgotten them.

HPCSTACK_TABLE=all (ci/soak): five kinds of failure by every runtime, each explained at once and
once more when the job is forgotten; else two kinds by one runtime.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from support.launching import RUNTIMES, STACK
from support.testbed import Testbed

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.jobs("second"),
    pytest.mark.slurm,
    pytest.mark.apptainer,
]
FOLDER = "tests/went-wrong"
PROGRAM = """\
import argparse, os, signal, sys, time
import torch.distributed as dist
class BadData(Exception): pass
how = sys.argv[1]
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    if how == "status": sys.exit(3)
    if how == "killed": os.kill(os.getpid(), signal.SIGKILL)
    if how == "text": sys.exit("the data is bad")
    if how == "own": raise BadData("row 17")
    if how == "leaves": sys.exit(0)
    if how == "options": argparse.ArgumentParser().parse_args(["--no-such"])
if how == "leaves":
    time.sleep(1)
    dist.barrier()
time.sleep(60)
"""
SAYS = {
    "status": (3, "rank 1 on node2 failed first"),
    "killed": (137, "rank 1 on node2 failed first: killed by SIGKILL"),
    "text": (1, "rank 1 on node2 failed first; the last line before: the data is bad"),
    "own": (1, "rank 1 on node2 failed first: BadData: row 17 (/"),
    "options": (
        2,
        "rank 1 on node2 failed first: wrong.py: error: unrecognized arguments: --no-such",
    ),
}
ALL = os.environ.get("HPCSTACK_TABLE") == "all"
KINDS = tuple(SAYS) if ALL else ("own",)  # a status alone: test_statuses
EACH = RUNTIMES if ALL else [pytest.param("pyxis", marks=pytest.mark.pyxis), "apptainer"]


class Launches:
    """Launches and jobs of a user who has launched nothing else."""

    def __init__(self, testbed: Testbed) -> None:
        self.testbed = testbed
        self.enter = f"cd {FOLDER} && export XDG_STATE_HOME=$PWD/state"

    def bash(self, words: str, *, timeout: float = 300) -> Any:
        return self.testbed.bash(f"{self.enter} && {words}", check=False, timeout=timeout)

    def explain(self, what: str = "") -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.bash(f"hpcstack explain {what} --json").stdout)
        return document

    def job(self) -> str:
        """The newest launch's."""
        number: str = json.loads(self.bash("hpcstack jobs -n 1 --json").stdout)[0]["job"]
        return number

    def wait_until_ended(self, job: str) -> None:
        until = time.monotonic() + 120
        while self.bash(f"squeue --noheader --jobs {job}").stdout.strip():
            assert time.monotonic() < until, f"job {job} does not end"
            time.sleep(1)

    def wait_until_forgotten(self, job: str) -> None:
        until = time.monotonic() + 200
        while self.bash(f"scontrol show job {job}").returncode == 0:
            assert time.monotonic() < until, f"Slurm still knows job {job}"
            time.sleep(3)


@pytest.fixture
def launches(testbed: Testbed, built: dict[str, Any]) -> Iterator[Launches]:
    testbed.bash(f"rm -rf {FOLDER} && mkdir -p {FOLDER}")
    testbed.give(f"{FOLDER}/wrong.py", PROGRAM)
    yield Launches(testbed)


@pytest.mark.parametrize("runtime", EACH)
@pytest.mark.parametrize("kind", KINDS)
def test_the_cause_comes_first_and_no_wrong_word_behind_it(
    launches: Launches, kind: str, runtime: str
) -> None:
    """researcher 1, 12: "/dev/shm is full" of a launcher whose image went away; "exit 1" and no
    reason.
    """
    status, says = SAYS[kind]
    done = launches.bash(
        f"hpcstack launch {STACK} -N2 --nproc-per-node 1 --runtime {runtime} -- wrong.py {kind}"
    )
    assert done.returncode == status, done.stderr
    assert f"hpcstack: {says}" in done.stderr.splitlines()[-1]
    torchruns = [line for line in done.stderr.splitlines() if "torch/distributed/elastic" in line]
    assert not torchruns, "what torchrun makes of it is not shown"
    for what in ("", launches.job()):  # what was waited for is known by its job's number, too
        found = launches.explain(what)
        assert found["said"].startswith(says), found
        assert not [one["id"] for one in found["findings"] if one["id"] != "system-killed"], found
    if ALL:
        launches.wait_until_forgotten(launches.job())
        assert launches.explain(launches.job())["said"].startswith(says)


def test_a_rank_that_left_early_is_named(launches: Launches) -> None:
    """researcher 12: "Connection closed by peer" of the rank that had waited for it."""
    line = f"hpcstack launch {STACK} -N1 --nproc-per-node 2 --runtime apptainer -- wrong.py leaves"
    last = launches.bash(line).stderr.splitlines()[-1]
    says = "rank 1 on node1 had ended before, without an error; then rank 0 on node1 failed: "
    assert last.startswith(f"hpcstack: {says}RuntimeError: "), last
    assert launches.explain()["said"].startswith(says)


def test_all_of_it_is_shown_where_somebody_asks(launches: Launches) -> None:
    line = (
        f"hpcstack launch {STACK} -N2 --nproc-per-node 1 --runtime apptainer --all -- wrong.py own"
    )
    assert "torch/distributed/elastic" in launches.bash(line).stderr


def test_an_array_is_known_task_by_task_when_slurm_has_forgotten_it(launches: Launches) -> None:
    """researcher 2: five minutes after its end "it ended with 0", which was one task of twenty."""
    program = (
        "import os, sys\nn = int(os.environ['SLURM_ARRAY_TASK_ID'])\nprint('task', n)\nif n == 1: "
        "raise KeyError(n)\n"
    )
    launches.testbed.give(f"{FOLDER}/task.py", program)
    options = "-N1 --mode plain --runtime apptainer --batch --array=0-3"
    job = launches.bash(f"hpcstack launch {STACK} {options} -- task.py").stdout.strip()
    launches.wait_until_ended(job)
    script = (
        "#!/bin/bash\n#SBATCH -N1\n#SBATCH -o of-mine-%j.txt\npython3 -c 'raise ValueError(7)'\n"
    )
    launches.testbed.give(f"{FOLDER}/mine.sbatch", script)
    mine = launches.bash("sbatch --parsable mine.sbatch").stdout.strip()
    launches.wait_until_ended(mine)
    for turn in ("at once", "forgotten"):
        found = launches.explain(job)
        assert found["said"].startswith("4 tasks: 3 COMPLETED, 1 FAILED, exit 1"), (turn, found)
        assert f"{job}_1: rank 0 on node" in found["said"] and "KeyError: 1" in found["said"], (
            turn,
            found,
        )
        assert [one["state"].partition(",")[0] for one in found["tasks"]] == [
            "COMPLETED", "FAILED", "COMPLETED", "COMPLETED",
        ], turn  # fmt: skip
        assert "3 COMPLETED, 1 FAILED, exit 1" in launches.bash("hpcstack jobs").stdout, turn
        assert launches.bash(f"hpcstack logs {job}_2").stdout.split() == ["task", "2"], turn
        assert launches.explain(mine)["said"].startswith("ValueError: 7"), turn
        if turn == "at once":
            launches.wait_until_forgotten(mine)
            launches.wait_until_forgotten(job)


def test_one_asks_about_this_terminals_launch(launches: Launches) -> None:
    """researcher 10: a launch failed while an array ran, and `explain` spoke of a task of the
    array.
    """
    failing = (
        f"hpcstack launch {STACK} -N1 --mode plain --runtime apptainer -- python3 -c 'raise "
        f"ValueError(1)'"
    )
    other = f"setsid -w hpcstack launch {STACK} -N1 --mode plain --runtime apptainer -- true"
    done = launches.bash(f"{failing}; {other}; hpcstack explain --json")
    assert json.loads(done.stdout)["said"].startswith("rank 0 on node"), done


def test_the_tasks_of_all_nodes(launches: Launches) -> None:
    """researcher 5: four torchruns on a node, EADDRINUSE after 36 s; mode mpi had 3 + 1."""
    done = launches.bash(f"hpcstack launch {STACK} -n 4 -- wrong.py own")
    assert done.returncode == 2 and "--nproc-per-node 4" in done.stderr, done.stderr
    asked = "-N2 -n4 --mode mpi --runtime apptainer"
    hosts = launches.bash(
        f"hpcstack launch {STACK} {asked} -- sh -c 'echo $SLURMD_NODENAME'"
    ).stdout.split()
    assert sorted(hosts) == ["node1", "node1", "node2", "node2"]


def test_the_nodes_on_which_jobs_died(testbed: Testbed) -> None:
    """What the site's accounting says of all jobs, by node."""
    job = testbed.bash(
        "cd tests && sbatch --parsable --wait -w node2 -o /dev/null --wrap 'exit 3' || true"
    ).stdout.strip()
    until = time.monotonic() + 30
    died: dict[str, list[str]] = {}
    while job not in died.get("node2", ()):  # slurmdbd hears of it a moment later
        assert time.monotonic() < until, died
        time.sleep(1)
        done = testbed.run("hpcstack", "jobs", "--by-node", "--days", "1", "--json")
        assert done.returncode in (0, 1), done.stderr
        died = {one["node"]: one["died"] for one in json.loads(done.stdout)["nodes"]}
    assert job not in died.get("node1", ())
    shown = testbed.run("hpcstack", "jobs", "--by-node", "--days", "1")
    assert "ended in 1 day" in shown.stdout
