"""Launches that go wrong on the testbed: a rank, a job and a node that die, and nothing left
running.
"""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any

import pytest

from support.launching import ALIKE, STACK, launch
from support.testbed import CONTROL, Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.alone, pytest.mark.slurm]


RUNTIMES = [
    pytest.param("apptainer", marks=pytest.mark.apptainer),
    pytest.param("podman", marks=[pytest.mark.podman, ALIKE]),
]
LEFT = (
    "ps -eo user,args | grep -E 'podman|conmon|squashfuse|[s]leep 6[17]' | grep ^hpcuser; grep -c "
    "hpcstack-podman /proc/mounts"
)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_rank_that_dies_ends_the_step_with_its_status(
    testbed: Testbed, built: dict[str, Any], show: str, runtime: str
) -> None:
    script = 'if [ "$SLURM_PROCID" = 1 ]; then kill -9 $$; fi; sleep 67'
    began = time.monotonic()
    done = launch(testbed, "-N2", "--mode", "plain", "--runtime", runtime, "--", "sh", "-c", script)
    assert done.returncode in (137, 143) and time.monotonic() - began < 40, (
        done.stderr
    )  # srun tells the highest
    assert testbed.json("jobs", "-n", "1")[0]["state"] == f"FAILED, exit {done.returncode}"
    assert _ended(testbed) and _nothing_is_left(), "nothing is left running"


def _nothing_is_left(seconds: float = 20) -> bool:
    """Neither a container nor a mount on this machine, which is all nodes: what keeps order there
    may take a moment.
    """
    until = time.monotonic() + seconds
    while (
        said := subprocess.run(["bash", "-c", LEFT], capture_output=True, text=True).stdout
    ) != "0\n":
        if time.monotonic() > until:
            print(said)
            return False
        time.sleep(0.5)
    return True


def _ended(testbed: Testbed, seconds: float = 120) -> bool:
    """Whether all jobs end: Slurm takes a while to complete one, the longer the more the machine
    has to do.
    """
    until = time.monotonic() + seconds
    while testbed.run("squeue", "--noheader", "--name", STACK).stdout and time.monotonic() < until:
        time.sleep(1)
    return not testbed.run("squeue", "--noheader", "--name", STACK).stdout


TOLD_TO_END = """\
import os, signal, time

def clean_up(*_):
    time.sleep(1)
    import xml.dom.minidom  # of the image, which is still there
    open("cleaned-up", "w").close()
    os._exit(143)

signal.signal(signal.SIGTERM, clean_up)
open("ready", "w").close()
time.sleep(61)
"""


@pytest.mark.apptainer
def test_a_rank_that_is_told_to_end_still_has_its_image(
    testbed: Testbed, built: dict[str, Any], show: str
) -> None:
    """What serves the image by FUSE died of the same TERM as the rank, and the rank of a bus error
    as it cleaned up.
    """
    assert _ended(testbed)
    testbed.give("tests/launching/told.py", TOLD_TO_END)
    cancel = "until [ -e ready ]; do sleep 0.2; done; scancel --name pytorch-24.11"
    script = f"cd tests/launching && rm -f ready cleaned-up && ({cancel}) & cd tests/launching && " \
        "hpcstack launch pytorch-24.11 --runtime apptainer --mode plain -- python3 told.py"  # fmt: skip
    done = testbed.bash(script, check=False)
    assert done.returncode == 143 and "Bus error" not in done.stderr, done.stderr
    assert testbed.bash("ls tests/launching/cleaned-up").stdout, done.stderr


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_job_that_is_cancelled_is_told(
    testbed: Testbed, built: dict[str, Any], show: str, runtime: str
) -> None:
    assert _ended(testbed)
    running = (
        "until squeue --noheader --states R --name pytorch-24.11 | grep -q .; do sleep 0.5; done; "
        "sleep 3"
    )
    script = f"({running}; scancel --name pytorch-24.11) & cd tests/launching && hpcstack launch pytorch-24.11 " \
        f"--runtime {runtime} --mode plain -- sleep 61"  # fmt: skip
    done = testbed.bash(script, check=False)
    assert done.returncode == 143 and "hpcstack: it was cancelled; exit 143" in done.stderr, (
        done.stderr
    )
    assert _ended(testbed)
    assert _nothing_is_left()


@pytest.mark.apptainer
def test_a_node_that_goes_down_ends_the_launch(
    testbed: Testbed, built: dict[str, Any], show: str
) -> None:
    script = (
        "cd tests/launching && (sleep 5; echo down >&2) & hpcstack launch pytorch-24.11 -N2 --mode "
        "plain "
        "--runtime apptainer -- sh -c 'echo started; sleep 90'"
    )
    control = {"SLURM_CONF": str(testbed.folder / "etc/slurm.conf"), "PATH": os.environ["PATH"]}
    began = time.monotonic()
    with subprocess.Popen([str(CONTROL), "exec", "bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as process:  # fmt: skip
        assert process.stdout
        assert process.stdout.readline() == "started\n"
        try:
            subprocess.run(
                ["scontrol", "update", "nodename=node2", "state=down", "reason=test"],
                env=control,
                check=True,
            )
            _, said = process.communicate(timeout=80)
        finally:
            subprocess.run(
                ["scontrol", "update", "nodename=node2", "state=resume"], env=control, check=False
            )
    assert process.returncode not in (0, None) and time.monotonic() - began < 80, said
    assert "node2" in said or "NODE FAILURE" in said or "CANCELLED" in said, said
    kept = testbed.json("jobs", "-n", "1")[0]
    assert kept["state"] == f"NODE_FAIL, exit {process.returncode}"
    found = testbed.json("explain", kept["job"])
    assert found["state"] == kept["state"]
    assert found["said"].startswith("a node failed")
    assert kept["nodes"] == "node[1-2]"
    assert _ended(testbed), "nothing is left running"


@pytest.mark.apptainer
def test_an_elastic_step_goes_on_without_a_rank_that_died(
    testbed: Testbed, built: dict[str, Any], show: str
) -> None:
    testbed.give("tests/launching/fragile.py", FRAGILE)
    testbed.bash("rm -f tests/launching/died")
    done = launch(testbed, "--elastic", "1:2", "--restarts", "2", "--nproc-per-node", "1", "--time=3", "--runtime",
                  "apptainer", "--", "fragile.py")  # fmt: skip
    assert done.returncode == 0 and "sum after a restart" in done.stdout, done.stderr[-2000:]


FRAGILE = """\
import os, sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
if first and dist.get_rank() == dist.get_world_size() - 1:
    os._exit(9)
total = torch.ones(1)
dist.all_reduce(total)
print(f"sum {'' if first else 'after a restart '}{total.item():.0f}", flush=True)
dist.destroy_process_group()
"""
