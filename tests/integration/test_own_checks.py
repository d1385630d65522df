"""Own checks on the testbed: STREAM, an mpi4py pi and a training step, each good and each broken.

STREAM is that of HPC Challenge, from Debian's package.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.recipes import Recipes
from support.testbed import Testbed

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.builds,
    pytest.mark.suite,
    pytest.mark.slurm,
    pytest.mark.registry,
]
RUNTIMES = [
    pytest.param(one, marks=getattr(pytest.mark, one)) for one in ("apptainer", "pyxis", "enroot")
]

# As few numbers as STREAM needs for a figure, and hardly any for the rest of HPC Challenge
HPCC_INPUT = """\
HPLinpack benchmark input file
a test
HPL.out
8
1
1000
1
80
0
1
1
1
16.0
1
2
1
4
1
2
1
1
1
0
1
0
1
0
2
64
0
0
1
8
0
0
0
0
"""

PI = """\
import sys
from mpi4py import MPI

world = MPI.COMM_WORLD
points = int(sys.argv[1])
mine = 0.0
for number in range(world.rank, points, world.size):
    x = (number + 0.5) / points
    mine += 4.0 / (1.0 + x * x)
found = world.allreduce(mine) / points
hosts = len(set(world.allgather(MPI.Get_processor_name())))
if world.rank == 0:
    print(f"{world.size} ranks on {hosts} hosts")
    print(f"pi is off by {abs(found - 3.141592653589793):.3e}")
"""

STEP = """\
import contextlib
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(rank)
inputs = torch.randn(64, 8)
target = inputs.sum(1, keepdim=True)
synchronized = "--apart" not in sys.argv
for step in range(60):
    with contextlib.nullcontext() if synchronized else model.no_sync():
        loss = torch.nn.functional.mse_loss(model(inputs), target)
        optimizer.zero_grad()
        loss.backward()
    optimizer.step()
    if rank == 0:
        print(f"step {step} loss {loss.item():.6f}")
weight = next(model.parameters()).detach()
others = [torch.empty_like(weight) for _ in range(dist.get_world_size())]
dist.all_gather(others, weight)
size = dist.get_world_size()
dist.destroy_process_group()  # else torch's threads may still be at work when Python ends
agree = all(torch.equal(weight, other) for other in others)
if rank == 0 and agree:
    print(f"{size} ranks agree")
if not agree:
    print("the ranks have different weights")
sys.stdout.flush()
os._exit(0 if agree else 1)  # torch 2.13 aborts now and then while Python takes its threads down
"""

STREAM_CHECK: dict[str, Any] = {
    "name": "stream",
    "about": "memory bandwidth of each node",
    "command": "cp /opt/checks/hpccinf.txt .\nhpcc\ncat hpccoutf.txt\n",
    "expect": "^Success=1",
    "figures": {
        "triad": {"pattern": "^StarSTREAM_Triad=([0-9.]+)", "unit": "GB/s", "better": "higher"}
    },
}
PI_CHECK: dict[str, Any] = {
    "name": "pi",
    "about": "pi by all ranks",
    "python": "/opt/checks/pi.py",
    "arguments": ["100000"],
    "on": "mpi",
    "expect": "^4 ranks on 2 hosts",
    "figures": {
        "error": {"pattern": "^pi is off by ([0-9.e+-]+)", "better": "lower", "gate": 1e-6}
    },
}
STEP_CHECK: dict[str, Any] = {
    "name": "step",
    "about": "data-parallel steps",
    "python": "/opt/checks/step.py",
    "arguments": [],
    "on": "ranks",
    "expect": "^4 ranks agree",
    "forbid": "loss nan",
    "figures": {"loss": {"pattern": "loss ([0-9.]+)", "better": "lower", "gate": 0.5}},
}


class Checked:
    """A stack of a test, whose own checks change while its image stays."""

    def __init__(self, recipes: Recipes, version: str, **parts: str) -> None:
        self.recipes = recipes
        self.version = version
        self.parts = parts
        self.runtime = "apptainer"
        self.name = f"demo-{version}"

    def write(self, *checks: dict[str, Any]) -> None:
        self.recipes.write(self.version, **self.parts, checks=json.dumps(list(checks)))

    def test(self, *checks: dict[str, Any], options: tuple[str, ...] = ()) -> dict[str, Any]:
        """Run CHECKS on two nodes. Return {code: its outcome}, with the verdict as `verdict`."""
        self.write(*checks)
        argv = ("test", self.name, "-N", "2", "--runtime", self.runtime, "--only", "stack")
        done = self.recipes.run(*argv, *options, "--json")
        assert done.stdout, done.stderr
        document = json.loads(done.stdout)
        found = {one["code"]: one for one in document["outcomes"]}
        assert done.returncode == (0 if document["verdict"] == "PASS" else 1)
        return {**found, "verdict": document["verdict"], "folder": document["folder"]}


def list_files(**files: str) -> str:
    """Return `files` of a recipe: {name: text} below /opt/checks."""
    return json.dumps(
        [
            {"path": f"/opt/checks/{name.replace('_', '.')}", "content": text}
            for name, text in files.items()
        ]
    )


@pytest.fixture
def programs(recipes: Recipes, small_base: str) -> Checked:
    """A stack with MPI, mpi4py and HPC Challenge, from Debian."""
    recipes.base = small_base
    # Of nodes that share a machine no gate would be judged, and these gates are out of all reach
    recipes.site(f"{recipes.render_site_text}node_types: {{virtual: {{virtual: false}}}}\n")
    made = Checked(
        recipes,
        "1",
        packages="{apt: [openmpi-bin, python3-mpi4py, hpcc]}",
        files=list_files(hpccinf_txt=HPCC_INPUT, pi_py=PI),
    )
    made.write()
    done = recipes.run("build", made.name)
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture
def training(recipes: Recipes, testbed: Testbed, built: dict[str, Any]) -> Checked:
    """A stack on the stand-in of NVIDIA's PyTorch, with a program that trains."""
    made = Checked(
        recipes,
        "2",
        base="{image: 'nvcr.io/nvidia/pytorch:24.11-py3'}",
        files=list_files(step_py=STEP),
    )
    made.write()
    done = recipes.run("build", made.name)
    assert done.returncode == 0, done.stderr
    return made


@pytest.mark.pmix
@pytest.mark.apptainer
def test_stream_and_pi(programs: Checked) -> None:
    good = programs.test(STREAM_CHECK, PI_CHECK)
    assert good["verdict"] == "PASS", good
    assert good["stack.stream"]["figures"]["triad_GB_s"] > 0.1
    # Each node has its own figure, unless both are one number: STREAM counts in ticks of a clock.
    assert len(good["stack.stream"]["peers"]) in (0, 2)
    assert good["stack.pi"]["figures"]["error"] < 1e-6

    gate = {**STREAM_CHECK["figures"]["triad"], "gate": {"virtual": 1e6}}
    bad = programs.test(
        {**STREAM_CHECK, "figures": {"triad": gate}}, {**PI_CHECK, "arguments": ["2"]}
    )
    assert bad["verdict"] == "FAIL"
    assert bad["stack.stream"]["status"] == "FAIL"
    named = " on node1" in bad["stack.stream"]["measured"]
    assert named == bool(bad["stack.stream"]["peers"])
    assert "triad_GB_s >= 1e+06" in bad["stack.stream"]["expected"]
    assert bad["stack.pi"]["status"] == "FAIL"
    assert bad["stack.pi"]["expected"].endswith("error <= 1e-06")

    wrong = programs.test(
        {**STREAM_CHECK, "expect": "^Success=2"},
        {**PI_CHECK, "expect": "^5 ranks", "needs": ["gpu"]},
        {"name": "slow", "command": "echo begun; sleep 600", "time_limit": 3},
    )
    assert "'^Success=2' is not printed" in wrong["stack.stream"]["measured"]
    assert wrong["stack.pi"]["status"] == "SKIP"
    assert wrong["stack.slow"]["measured"] == "ended after 3 s, its time limit"
    assert wrong["stack.slow"]["evidence"] == "begun"

    again = programs.recipes.run("report", "--rejudge", f"{bad['folder']}/capsule.tar.gz")
    assert again.returncode == 0, again.stdout + again.stderr


@pytest.mark.soak(
    "torch in a check, three times: a check is a command",
    kept="tests/integration/test_own_checks.py::test_stream_and_pi",
)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_training_step(training: Checked, runtime: str) -> None:
    training.runtime = runtime
    good = training.test(STEP_CHECK)
    assert good["verdict"] == "PASS", good
    assert good["stack.step"]["figures"]["loss"] < 0.5

    apart = training.test({**STEP_CHECK, "arguments": ["--apart"]})
    assert apart["stack.step"]["status"] == "FAIL"
    assert apart["stack.step"]["measured"] == "exit status 1"
    assert "the ranks have different weights" in apart["stack.step"]["evidence"]

    lost = training.test(
        {
            **STEP_CHECK,
            "python": "",
            "arguments": [],
            "command": 'test "$RANK" = 3 && exit 9\npython3 /opt/checks/step.py',
        }
    )
    assert lost["stack.step"]["measured"] == "exit status 9"
    assert lost["stack.step"]["where"] == ["node2:3"]
