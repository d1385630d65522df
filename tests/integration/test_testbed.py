"""The testbed itself: nodes that are apart, restart after a crash, accounting."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from support.testbed import CONTROL, Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.alone, pytest.mark.slurm]


def on_nodes(testbed: Testbed, script: str) -> list[str]:
    done = testbed.run(
        "srun", "-N2", "--ntasks-per-node=1", "--label", "bash", "-c", script, check=True
    )
    return [line.partition(": ")[2] for line in sorted(done.stdout.splitlines())]


def test_nodes_have_their_own_name_tmp_and_shm(testbed: Testbed) -> None:
    assert on_nodes(testbed, "hostname") == ["node1", "node2"]
    on_nodes(testbed, "hostname >/tmp/who; hostname >/dev/shm/who")
    assert on_nodes(testbed, "cat /tmp/who /dev/shm/who | xargs") == ["node1 node1", "node2 node2"]
    on_nodes(testbed, "rm /tmp/who /dev/shm/who")


def test_nodes_have_their_own_address_where_bridges_can_be_made(testbed: Testbed) -> None:
    if (testbed.folder / "etc/own-addresses").read_text().strip() != "yes":
        pytest.skip("no network namespaces on this machine")
    addresses = on_nodes(testbed, "getent ahostsv4 $(hostname) | head -1 | cut -d' ' -f1")
    assert len(set(addresses)) == 2
    assert not any(address.startswith("127.") for address in addresses)


def test_each_node_has_four_virtual_gpus(testbed: Testbed) -> None:
    done = testbed.run(
        "srun", "-N1", "--gpus-per-node=4", "bash", "-c", "echo $CUDA_VISIBLE_DEVICES", check=True
    )
    assert done.stdout.strip() == "0,1,2,3"
    assert testbed.run("srun", "-N1", "--gpus-per-node=5", "true").returncode != 0


def test_accounting_answers(testbed: Testbed) -> None:
    testbed.run("srun", "--job-name=counted", "true", check=True)
    assert (
        "counted"
        in testbed.bash(
            "for i in 1 2 3 4 5 6 7 8; do sacct -X -n -o jobname%20 | grep -m1 counted && "
            "break; sleep 1; done"
        ).stdout
    )


def test_up_mends_what_crashed(testbed: Testbed) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root")
    for name in ("slurmctld", "slurmd-node2", "registry"):
        pid = int((testbed.folder / f"run/{name}.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.5)
    assert (
        subprocess.run([str(CONTROL), "status"], capture_output=True, check=False).returncode == 1
    )
    subprocess.run([str(CONTROL), "up"], check=True, capture_output=True)
    assert (
        subprocess.run([str(CONTROL), "status"], capture_output=True, check=False).returncode == 0
    )
    assert on_nodes(testbed, "hostname") == ["node1", "node2"]
