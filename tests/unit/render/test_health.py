"""The script of `hpcstack site health`, by real shells: programs that hang, fail and lie, and what it says of them."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from hpcstack.render.launchers import health
from hpcstack.site.load import Site

SITE = {
    "name": "demo", "node_types": {
        "gpu": {"gpus": {"model": "H100", "count": 2, "nvlink": True}, "driver": "550.54.15", "hcas": ["mlx5_0"], "hca_rate": 400},
        "cpu": {"cpus": 4}, "odd": {"hcas": ["$(touch /tmp/no);'\"x"]},
    },
    "partitions": {"g": {"node_type": "gpu", "default": True}, "c": {"node_type": "cpu"}},
}  # fmt: skip
GOOD = "0, GPU-aa, 0, 0, 0\n1, GPU-bb, 0, 0, 4\n"  # some of long ago, which nothing takes back, are no reason
LINKS = "GPU 0: NVIDIA H100\n\t Link 0: 26.562 GB/s\n"


def smi(folder: Path, query: str = GOOD, links: str = LINKS, hangs: str = "", status: int = 0) -> None:
    (folder / "query").write_text(query)
    (folder / "links").write_text(links)
    tool = folder / "bin/nvidia-smi"
    tool.parent.mkdir(exist_ok=True)
    # A process that heeds no signal but KILL, as one that waits for a broken device
    tool.write_text(f"""#!/bin/sh
case $1 in
{hangs or "nothing"}*) trap '' TERM INT HUP; sleep 20 ;;
--query*) cat {folder}/query; exit {status} ;;
nvlink) cat {folder}/links ;;
esac
""")
    tool.chmod(0o755)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node with two GPUs and one port, all well."""
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue\n")
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    smi(tmp_path)
    return tmp_path


def told(folder: Path, shell: str = "dash", **env: str) -> tuple[int, dict[str, Any], float]:
    """(status, what was printed, seconds) of the script on the node in FOLDER."""
    paths = {"store": str(folder), "lock_dir": str(folder), "module_root": str(folder)}
    script = folder / "health.sh"
    script.write_text(health(Site.model_validate({**SITE, **paths})))
    base = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    base |= {"PATH": f"{base['PATH']}:{folder}/bin", "HPCSTACK_HEALTH_ROOT": str(folder), "HPCSTACK_NODE_TYPE": "gpu"}
    began = time.monotonic()
    done = subprocess.run([shell, str(script)], env={**base, **env}, capture_output=True, text=True, timeout=60)
    took = time.monotonic() - began
    assert done.stderr == "" or env, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, document, took


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_a_node_that_is_well(node: Path, shell: str) -> None:
    status, found, took = told(node, shell)
    assert status == 0 and found["healthy"] and found["checks"] == 7, found
    assert took < 2
    assert not list(Path("/dev/shm").glob("hpcstack-health.*"))


@pytest.mark.parametrize(("change", "says"), [
    ({"query": "0, GPU-aa, 0, 0, 0\n"}, "1 of 2 GPUs"),
    ({"query": GOOD.replace("bb, 0, 0", "bb, 3, 0")}, "GPU 1: 3 uncorrectable errors in SRAM since the driver was"),
    ({"query": GOOD.replace("bb, 0, 0, 4", "bb, 0, 0, 5")}, "GPU 1: 5 uncorrectable errors in SRAM since it was made"),
    ({"query": GOOD.replace("aa, 0, 0", "aa, 0, 1")}, "GPU 0: a row waits to be remapped"),
    ({"query": GOOD.replace("bb, 0", "bb, [GPU requires reset]")}, "GPU 1 does not answer"),
    ({"query": GOOD.replace(" 0,", " [N/A],")}, ""),  # what a GPU does not say is no fault
    ({"query": "NVML: Driver/library version mismatch\n", "status": 18}, "nvidia-smi failed: NVML: Driver/library"),
    ({"query": "$(id) `id` \"; drop\n", "status": 1}, "nvidia-smi failed: $(id) `id` ; drop"),
    ({"links": LINKS.replace("26.562 GB/s", "<inactive>")}, "an NVLink is inactive"),
    ({"hangs": "--query"}, "nvidia-smi does not answer"),
    ({"hangs": "nvlink"}, "nvidia-smi does not answer"),
])  # fmt: skip
def test_what_is_wrong_with_its_gpus(node: Path, change: dict[str, Any], says: str) -> None:
    smi(node, **change)
    status, found, took = told(node)
    assert status == (1 if says else 0) and took < 2.5, (found, took)
    assert not says or says in "; ".join(one["why"] for one in found["failed"])


@pytest.mark.parametrize(("file", "text", "says"), [
    ("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN", "mlx5_0 is DOWN"),
    ("sys/class/infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)", "mlx5_0 has 200 of 400 Gb/s"),
    ("proc/driver/nvidia/version", "NVRM version: Module  535.1  x", "the driver is not 550.54.15"),
    ("sys/class/infiniband/mlx5_0", None, "mlx5_0 is not here"),
    ("proc/driver/nvidia/version", None, "no NVIDIA driver"),
])  # fmt: skip
def test_what_is_missing_on_it(node: Path, file: str, text: str | None, says: str) -> None:
    place = node / file
    if text is None:
        place.rename(node / "gone")
    else:
        place.write_text(f"{text}\n")
    status, found, _ = told(node)
    assert status == 1 and says in "; ".join(one["why"] for one in found["failed"]), found


def test_another_kind_of_node_needs_none_of_it(node: Path) -> None:
    smi(node, hangs="-")
    status, found, _ = told(node, HPCSTACK_NODE_TYPE="2")
    assert status == 0 and found["checks"] == 4


def test_what_the_site_writes_is_text(node: Path) -> None:
    status, found, _ = told(node, HPCSTACK_NODE_TYPE="3")
    assert status == 1 and "is not here" in found["failed"][0]["why"] and not Path("/tmp/no").exists()


def test_in_a_prolog_the_reason_is_told_and_nothing_is_drained_by_hand(node: Path) -> None:
    smi(node, "")
    calls = node / "calls"
    (node / "bin/scontrol").write_text(f'#!/bin/sh\necho "$@" >>{calls}\n')
    (node / "bin/scontrol").chmod(0o755)
    status, _, _ = told(node, SLURM_SCRIPT_CONTEXT="prolog_slurmd", SLURMD_NODENAME="n1")
    assert status == 1 and not calls.exists()
    status, _, _ = told(node)
    assert status == 1 and not calls.exists()


def test_it_is_good_shell(node: Path) -> None:
    told(node)
    done = subprocess.run(["shellcheck", str(node / "health.sh")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
