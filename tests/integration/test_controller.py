"""What only Slurm's controller judges of the lines that we make: GRES, partitions, numbers of nodes.

tests/unit/launch/test_plan.py has what srun itself judges, of each pair of options. --segment is in
tests/integration/test_nvlink_domains.py.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.launching import STACK
from support.testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.jobs, pytest.mark.slurm, pytest.mark.apptainer]

# (options, mode, what hpcstack or the controller says against it; empty where it is taken). A node of
# the testbed has 4 CPUs and gpu:4.
LINES = [
    ("--gres=gpu", "torchrun", ""),
    ("--gres=gpu:2", "torchrun", ""),
    ("--gres=none", "torchrun", ""),
    ("--gpus-per-node=4", "task-per-gpu", ""),
    ("-N2 --gpus=8", "torchrun", ""),
    ("-n2 --gpus-per-task=1", "plain", ""),
    ("--ntasks-per-node=2 --gres=gpu:2", "mpi", ""),
    ("-N 1-2 --gpus-per-node=1", "torchrun", ""),
    ("-N 1-2", "plain", ""),
    ("--exclusive=user --gpus-per-node=1", "torchrun", ""),
    ("--exclusive -N2", "torchrun", ""),
    ("-c2 -n2", "plain", ""),
    ("-p debug --time=5", "torchrun", ""),
    ("--mem=1G --gres=gpu:1", "torchrun", ""),
    ("--gres=gpu:5", "torchrun", "Requested node configuration is not available"),
    ("--gres=gpu:h100:1", "torchrun", "Requested node configuration is not available"),
    ("--gres=shard:1", "torchrun", "Invalid generic resource"),
    ("-p nowhere", "torchrun", "nowhere"),
    ("-N 3", "torchrun", "3 nodes"),
    ("-N 3-4", "torchrun", "3 nodes"),
    ("--mem=900G", "torchrun", "Requested node configuration is not available"),
]


ENTER = "mkdir -p tests/controller && cd tests/controller"


@pytest.fixture
def check(testbed: Testbed, built: dict[str, Any]) -> Any:
    def ask(options: str, mode: str) -> dict[str, Any]:
        words = f"{options} --batch --check --json --runtime apptainer --mode {mode} -- true"
        done = testbed.bash(f"{ENTER} && hpcstack launch {STACK} {words}", check=False)
        if not done.stdout:
            return {"ok": False, "said": done.stderr}
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    return ask


def test_the_controller_takes_what_is_there_and_refuses_the_rest(check: Any) -> None:
    wrong = []
    for options, mode, refusal in LINES:
        answer = check(options, mode)
        if answer["ok"] is bool(refusal) or refusal.lower() not in answer["said"].lower():
            wrong.append(f"{options} in mode {mode}: {answer['said']}")
    assert wrong == []


def test_a_range_of_nodes_runs_on_what_slurm_gives(testbed: Testbed, built: dict[str, Any]) -> None:
    words = "-N 1-2 --mode task-per-gpu --runtime apptainer --label"
    program = "echo $WORLD_SIZE $(uname -n)"
    done = testbed.bash(f"{ENTER} && hpcstack launch {STACK} {words} -- sh -c '{program}'")
    said = sorted(line.split() for line in done.stdout.splitlines())
    ranks = [label for label, _, _ in said]
    assert ranks == [f"[rank{rank}]:" for rank in range(len(said))], done.stderr
    assert {world for _, world, _ in said} == {str(len(said))}
    assert len({node for _, _, node in said}) == len(said) <= 2
