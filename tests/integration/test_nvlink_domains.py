"""Jobs on NVLink domains, on virtual nodes in blocks of Slurm's topology/block.

The blocks are dealt out: node1 is in the first, node2 in the second, and so on. So Slurm's order of
nodes is never that of the blocks. No NVLink is behind them.
"""

from __future__ import annotations

import json
import re
from itertools import groupby
from typing import Any

import pytest

from support.launching import STACK, launch
from support.testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.slurm, pytest.mark.blocks, pytest.mark.apptainer]

# What each rank says: its number, where it is, its node's number, and on which node rank 0 is.
SAY = """\
import json, os, socket
given = os.environ
line = {"rank": int(given.get("RANK") or given["SLURM_PROCID"]), "address": given["SLURM_TOPOLOGY_ADDR"]}
if "MASTER_ADDR" in given:
    line["first"] = socket.gethostbyaddr(given["MASTER_ADDR"])[0]
line["node"] = int(given["SLURM_NODEID"])
os.write(1, (json.dumps(line) + "\\n").encode())
"""


@pytest.fixture(scope="module")
def says(testbed: Testbed, built: dict[str, Any]) -> str:
    """The name of a script whose ranks say where they are, in the folder of the launches."""
    testbed.give("tests/launching/domains.py", SAY)
    return "domains.py"


def list_ranks(text: str) -> list[dict[str, Any]]:
    """What the ranks said, in their order."""
    said = [json.loads(one) for one in re.findall(r"\{\"rank\".*?\}", text)]
    return sorted(said, key=lambda one: int(one["rank"]))


def list_domains(ranks: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """[(block, how many ranks follow each other in it)]."""
    blocks = [one["address"].partition(".")[0] for one in ranks]
    return [(block, len(list(group))) for block, group in groupby(blocks)]


@pytest.mark.parametrize(
    ("mode", "nodes", "per_node", "segment"),
    [
        ("torchrun", 20, 1, 10),
        ("deepspeed", 20, 1, 10),
        ("task-per-gpu", 20, 2, 10),
        ("mpi", 20, 2, 10),
        ("task-per-gpu", 36, 2, 18),
        ("task-per-gpu", 16, 2, 16),
    ],
)
def test_ranks_of_a_domain_follow_each_other(
    testbed: Testbed, says: str, mode: str, nodes: int, per_node: int, segment: int
) -> None:
    done = launch(
        testbed, f"-N{nodes}", "--nproc-per-node", str(per_node), "--mode", mode, "--runtime",
        "apptainer", "--", says,
    )  # fmt: skip
    ranks = list_ranks(done.stdout)
    assert done.returncode == 0, done.stderr
    assert [one["rank"] for one in ranks] == list(range(nodes * per_node)), done.stdout
    domains = list_domains(ranks)
    assert [count for _, count in domains] == [segment * per_node] * (nodes // segment)
    assert len({block for block, _ in domains}) == nodes // segment
    numbers = [one["node"] for one in ranks]
    assert numbers == [node for node in range(nodes) for _ in range(per_node)]
    if mode != "mpi":  # all ranks meet on the node of rank 0
        assert {one["first"] for one in ranks} == {ranks[0]["address"].partition(".")[2]}


def test_a_batch_job_asks_for_its_parts_and_orders_its_nodes(testbed: Testbed, says: str) -> None:
    options = ("-N20", "--mode", "task-per-gpu", "--nproc-per-node", "1", "--runtime", "apptainer")
    script = launch(testbed, *options, "--batch", "--dry-run", "--all", "--", says).stdout
    assert "#SBATCH --segment=10" in script
    assert "2 parts of 10 nodes, each in one NVLink domain" in script
    testbed.give("tests/launching/domains.sbatch", script)
    testbed.bash("cd tests/launching && sbatch --wait --output=domains.out domains.sbatch")
    text = testbed.bash("cat tests/launching/domains.out").stdout
    assert [count for _, count in list_domains(list_ranks(text))] == [10, 10], text


def test_a_script_to_copy_asks_for_its_parts(testbed: Testbed, says: str) -> None:
    script = launch(testbed, "-N20", "--template", "ddp").stdout
    assert "#SBATCH --segment=10\n" in script
    assert "--segment" not in launch(testbed, "--template", "ddp").stdout
    own = launch(testbed, "-N20", "--srun=--segment=5", "--template", "ddp").stdout
    assert "#SBATCH --segment=5\n" in own
    assert own.count("--segment") == 1
    refused = launch(testbed, "-N20", "--srun=--segment=7", "--template", "ddp")
    assert refused.returncode == 2
    assert "parts of 7" in refused.stderr


def test_doctor_compares_domains_with_blocks(testbed: Testbed) -> None:
    found = {one["code"]: one for one in testbed.json("doctor", check=False)["findings"]}
    assert found["domains"]["status"] == "OK"
    assert found["domains"]["found"] == "2 blocks of up to 18 nodes"


def test_inside_a_job_nodes_are_put_in_order(testbed: Testbed, says: str) -> None:
    line = (
        f"hpcstack launch {STACK} -N20 --mode task-per-gpu --nproc-per-node 1 --runtime apptainer "
        f"-- {says}"
    )
    done = testbed.bash(f"cd tests/launching && salloc --quiet -N20 --segment=10 {line}")
    ranks = list_ranks(done.stdout)
    assert [count for _, count in list_domains(ranks)] == [10, 10], done.stdout + done.stderr


def test_a_step_from_inside_is_in_slurms_order_again(testbed: Testbed, says: str) -> None:
    inside = 'if [ "$RANK" = 19 ]; then srun --nodes=2 --ntasks=2 sh -c "echo from inside"; fi'
    done = launch(
        testbed, "-N20", "--slurm", "--mode", "task-per-gpu", "--nproc-per-node", "1",
        "--runtime", "apptainer", "--", "sh", "-c", inside,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("from inside") == 2, done.stdout + done.stderr


def test_spare_nodes_are_left_out_before_the_others_are_put_in_order(
    testbed: Testbed, says: str
) -> None:
    done = launch(
        testbed, "-N18", "--spare=2", "--mode", "task-per-gpu", "--nproc-per-node", "2",
        "--runtime", "apptainer", "--", says,
    )  # fmt: skip
    ranks = list_ranks(done.stdout)
    assert len(ranks) == 36, done.stderr
    # Of the job's 2 x 10 nodes, the first 18 that are well
    assert sorted(count for _, count in list_domains(ranks)) in ([16, 20], [18, 18])
    assert {one["first"] for one in ranks} == {ranks[0]["address"].partition(".")[2]}


def test_a_misfit_is_told_before_the_queue(testbed: Testbed, says: str) -> None:
    done = launch(testbed, "-N19", "--mode", "plain", "--runtime", "apptainer", "--", "true")
    assert done.returncode == 0, done.stderr
    assert "19 nodes cannot be shared out evenly among NVLink domains of 18 nodes" in done.stderr
    assert "18 (one domain) or 20 (2 x 10) can" in done.stderr


def test_what_slurm_can_never_place_is_refused(testbed: Testbed, says: str) -> None:
    done = launch(testbed, "-N33", "--segment=11", "--", "true")
    assert done.returncode == 2
    assert "have room for 2" in done.stderr
    # Slurm says the same, in other words.
    slurm = testbed.run("srun", "-N33", "--segment=11", "true")
    assert slurm.returncode
    assert "not available" in slurm.stderr
