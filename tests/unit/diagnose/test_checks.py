"""The doctor's judgement of probes, and the probe itself under real shells."""

from __future__ import annotations

import re
import subprocess

import pytest

from hpcstack.core import data
from hpcstack.diagnose.advice import Finding
from hpcstack.diagnose.checks import check_clocks, check_machine, parse_probe
from hpcstack.render.template import read_data_file
from hpcstack.runtimes import RUNTIMES
from hpcstack.site.load import Gpus, NodeType

GOOD = {
    "host": "node1", "userns.works": "yes", "fuse": "usable", "tool.apptainer": "/usr/bin/apptainer", "shm.kb": "4194304",
    "tmp": "/tmp", "tmp.kb": "104857600", "tmp.writable": "yes", "nofile": "65536", "gpus": "8", "driver": "550.54.15",
    "gpu.names": "8 NVIDIA H100 80GB HBM3", "hca.mlx5_0.1": "4: ACTIVE, 400 Gb/sec (4X NDR), InfiniBand",
    "infiniband.devices": "yes", "memlock.kb": "unlimited", "gpudirect": "peermem", "readable./store": "yes",
}  # fmt: skip
NODE = NodeType(gpus=Gpus(model="H100", count=8), driver="550.54.15", hcas=("mlx5_0",))


def wrong(
    change: dict[str, str], runtime: str = "apptainer", node: NodeType | None = NODE
) -> dict[str, Finding]:
    probe = {key: value for key, value in (GOOD | change).items() if value != "-"}
    found = check_machine(probe, runtime, node, compute=True)
    return {one.code: one for one in found if one.status in ("FAIL", "WARN")}


def test_a_good_node_has_nothing_wrong() -> None:
    assert wrong({}) == {}


@pytest.mark.parametrize(
    ("change", "code", "status"),
    [
        ({"userns.works": "no", "userns.max": "0"}, "userns", "FAIL"),
        ({"fuse": "not for this user"}, "fuse", "FAIL"),
        ({"tool.apptainer": "-"}, "runtime", "FAIL"),
        ({"shm.kb": "65536"}, "shm", "WARN"),
        ({"tmp.kb": "1000000"}, "tmp.room", "WARN"),
        ({"tmp.writable": "no"}, "tmp", "FAIL"),
        ({"nofile": "1024"}, "nofile", "WARN"),
        ({"gpus": "7"}, "gpu", "FAIL"),
        ({"driver": ""}, "driver", "FAIL"),
        ({"driver": "535.104.05"}, "driver.other", "WARN"),
        ({"hca.mlx5_0.1": "-"}, "hca", "FAIL"),
        ({"hca.mlx5_0.1": "1: DOWN, 10 Gb/sec, InfiniBand"}, "hca.link", "FAIL"),
        ({"hca.mlx5_9.1": "1: DOWN, 10 Gb/sec, Ethernet"}, "hca.link", "WARN"),
        ({"infiniband.devices": "no"}, "hca.devices", "FAIL"),
        ({"memlock.kb": "8192"}, "memlock", "FAIL"),
        ({"gpudirect": "none"}, "gpudirect", "WARN"),
        ({"readable./store": "no"}, "store", "FAIL"),
    ],
)
def test_each_fault_is_named_with_why_and_what_to_type(
    change: dict[str, str], code: str, status: str
) -> None:
    found = wrong(change)
    assert list(found) == [code]
    assert found[code].status == status
    assert found[code].why
    assert found[code].remedy
    assert found[code].found


def test_enroots_own_traps() -> None:
    enroot = {
        "tool.enroot": "/usr/bin/enroot",
        "enroot.version": "3.5.0",
        "enroot.hooks": "10-home.sh 98-nvidia.sh",
    }
    assert set(wrong(enroot, "pyxis")) == {"enroot.nvidia", "enroot.pmi", "enroot.version"}
    assert (
        wrong({**enroot, "enroot.version": "4.1.2", "enroot.hooks": "50-slurm-pmi.sh"}, "pyxis")
        == {}
    )


def test_enroots_helpers_and_a_user_without_ids() -> None:
    enroot = {
        "tool.enroot": "/usr/bin/enroot",
        "enroot.version": "4.1.2",
        "enroot.hooks": "50-slurm-pmi.sh",
    }
    assert set(wrong({**enroot, "enroot.mksquashovlfs": ""}, "pyxis")) == {"enroot.caps"}
    assert wrong({**enroot, "enroot.mksquashovlfs": "cap_sys_admin=ep"}, "pyxis") == {}
    here = check_machine({**GOOD, "user": "jo", "subuid": "0"}, "apptainer", None, compute=False)
    found = next(one for one in here if one.code == "subuid")
    assert found.status == "WARN"
    assert found.remedy.endswith(" jo")
    assert "subuid" in wrong({"tool.podman": "/usr/bin/podman"}, "podman")


def test_a_setuid_apptainer_needs_no_user_namespaces() -> None:
    probe = {"host": "n", "userns.works": "no", "apptainer.setuid": "yes"}
    found = check_machine(probe, "apptainer", NodeType(), compute=True)
    (userns,) = (one for one in found if one.code == "userns")
    assert (userns.status, userns.found) == ("SKIP", "not needed: apptainer is setuid")


def test_a_node_without_gpus_that_promises_none_is_skipped_not_passed() -> None:
    found = check_machine({"host": "n", "gpus": "0"}, "apptainer", NodeType(), compute=True)
    by = {one.code: one.status for one in found}
    assert by["gpu"] == "SKIP"
    assert by["hca"] == "SKIP"


def test_clocks_that_disagree() -> None:
    def at(host: str, seconds: float) -> dict[str, str]:
        return {"host": host, "epoch": str(seconds)}

    assert [one.status for one in check_clocks([at("a", 100.0), at("b", 102.0)], 1.0)] == ["OK"]
    found = next(check_clocks([at("a", 100.0), at("b", 400.0)], 1.0))
    assert (found.status, found.where) == ("FAIL", "b")
    assert "299 s ahead of a" in found.found
    assert list(check_clocks([at("a", 1.0)], 1.0)) == []


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_probe_runs_under_real_shells(shell: str) -> None:
    script = read_data_file("launchers", "on-node/doctor.sh")
    argv = [shell, "-u", "-c", script, "doctor", "/etc", "/no/such place"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    found = parse_probe(done.stdout)
    assert found["host"]
    assert float(found["epoch"]) > 1e9
    assert found["readable./etc"] == "yes"
    assert done.stderr == ""
    assert check_machine(found, "apptainer", None, compute=True)


def test_what_is_no_line_of_the_probe_is_left_out() -> None:
    assert parse_probe("host=a\nBAD KEY=1\n=\nnoise\n$(x)=1\nkernel=6.1=b\n") == {
        "host": "a",
        "kernel": "6.1=b",
    }


def test_the_nodes_script_looks_for_every_runtimes_program() -> None:
    """Else the doctor calls it missing on every node, where it is installed, too."""
    script = (data.find_data_folder("launchers") / "on-node/doctor.sh").read_text()
    found = re.search(r"^for tool in (.*); do$", script, re.MULTILINE)
    assert found
    assert {one.tool for one in RUNTIMES.values()} <= set(found[1].split())
