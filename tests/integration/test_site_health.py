"""`hpcstack site health` as Slurm's own HealthCheckProgram: a node whose nvidia-smi hangs is
drained, with the reason.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.testbed import Testbed

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.slurm,
    pytest.mark.alone,
    pytest.mark.apptainer,
    pytest.mark.registry,
]
SITE = """\
name: demo
node_types: {sick: {gpus: {model: H100, count: 2}, driver: "550.54.15"}}
health: {misses: 2, clean: 2, ignore: [kernel]}
"""
GOOD = """#!/bin/sh
case $1 in
--query-gpu=index,uuid,*) printf '0, GPU-aa, Disabled\\n1, GPU-bb, Disabled\\n' ;;
*) exit 2 ;;
esac
"""
WRAPPER = """\
#!/bin/sh
[ "$SLURMD_NODENAME" = node2 ] || exit 0
export SLURM_CONF=%(conf)s HPCSTACK_HEALTH_ROOT=%(root)s HPCSTACK_NODE_TYPE=sick PATH=$PATH:%(root)s/bin
export HPCSTACK_HEALTH_LIMIT=2 HPCSTACK_HEALTH_STATE=%(root)s/state
sh %(root)s/health.sh >>%(root)s/log 2>&1
"""


def state(testbed: Testbed, node: str) -> str:
    return testbed.run(
        "sinfo", "--noheader", "--Node", f"--nodes={node}", "--format=%T|%E", check=True
    ).stdout.strip()


@pytest.fixture
def sick(testbed: Testbed) -> Iterator[Path]:
    """node2, whose nvidia-smi waits for a device that does not answer; well again afterwards.
    (Nodes have own /tmp.)
    """
    place = testbed.folder / "sick"
    shutil.rmtree(place, ignore_errors=True)
    version = place / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue\n")
    tool = place / "bin/nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\ntrap '' TERM INT HUP\nsleep 30\n")
    tool.chmod(0o755)
    folder = testbed.give("health/site.yaml", SITE).parent
    script = testbed.run(
        "hpcstack", "--site", str(folder / "site.yaml"), "site", "health", check=True
    ).stdout
    (place / "health.sh").write_text(script)
    program, conf = testbed.folder / "etc/health", testbed.folder / "etc/slurm.conf"
    before = program.read_text()
    program.write_text(WRAPPER % {"conf": conf, "root": place})
    try:
        yield place
    finally:
        program.write_text(before)
        subprocess.run(["scontrol", "update", "nodename=node2", "state=resume"], env={"SLURM_CONF": str(conf), "PATH": "/usr/bin:/bin"},
                       check=False)  # fmt: skip
        shutil.rmtree(place)


def test_slurm_drains_a_node_whose_gpus_hang_and_gets_it_back_when_they_answer(
    testbed: Testbed, sick: Path
) -> None:
    until = time.monotonic() + 90
    while "drain" not in state(testbed, "node2") and time.monotonic() < until:
        time.sleep(1)
    assert state(testbed, "node2").startswith("drain"), (sick / "log").read_text()
    assert "hpcstack: nvidia-smi does not answer" in state(testbed, "node2")
    assert state(testbed, "node1").startswith(("idle", "mixed", "allocated"))
    while '"healthy": false' not in (sick / "log").read_text() and time.monotonic() < until:
        time.sleep(0.5)  # it says so once it has looked at what other nodes did at the same moment
    assert '"healthy": false' in (sick / "log").read_text()
    (sick / "bin/nvidia-smi").write_text(GOOD)
    while "drain" in state(testbed, "node2") and time.monotonic() < until + 90:
        time.sleep(1)
    assert state(testbed, "node2").startswith(("idle", "mixed", "allocated")), (
        sick / "log"
    ).read_text()
    assert '"action": "undrain"' in (sick / "log").read_text()


def test_a_spare_node_takes_the_place_of_one_that_is_not_fit(
    testbed: Testbed, built: dict[str, Any]
) -> None:
    """A folder that jobs mount is on node2 alone: of two nodes node1 is left out."""
    fit = testbed.folder / "nodes/node2/tmp/fit"  # /tmp as node2 has it
    fit.mkdir(exist_ok=True)
    fit.chmod(0o777)
    site = testbed.give("health/spare.yaml", 'mounts: ["/tmp/fit:/fit"]\n')
    try:
        done = testbed.run(
            "hpcstack", "--site", str(site), "launch", "pytorch-24.11", "-N", "1", "--spare", "1", "--mode", "plain",
            "--runtime", "apptainer", "--", "sh", "-c", "echo on $SLURMD_NODENAME of $SLURM_STEP_NUM_NODES",
        )  # fmt: skip
    finally:
        fit.rmdir()
    assert done.returncode == 0, done.stderr
    assert "hpcstack: node1 is left out: /tmp/fit is not here" in done.stderr
    assert "on node2 of 1" in done.stdout
    none = testbed.run(
        "hpcstack", "--site", str(site), "launch", "pytorch-24.11", "-N", "1", "--spare", "1", "--mode", "plain",
        "--runtime", "apptainer", "--", "true",
    )  # fmt: skip
    assert none.returncode == 125
    assert "0 healthy nodes in this job, 1 are needed" in none.stderr
