"""`site health` on all made-up clusters (tests/clusters): silent on each healthy node, and what it
says of each fault.

The script runs on its own, with the node's files below a root of its own and programs that answer
as the node's do.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hpcstack.render.launchers import render_health
from hpcstack.site.load import Site
from support import clusters
from support.journal import as_journal
from support.nodes import Node

QUESTIONS = (
    "--query-gpu=index,uuid,mig.mode.current", "--query-gpu=index,ecc.errors.uncorrected.volatile.sram",
    "--query-gpu=index,ecc.errors.uncorrected.aggregate.sram", "--query-gpu=index,remapped_rows.failure",
    "--query-gpu=index,gpu_recovery_action", "-L", "nvlink -s",
)  # fmt: skip
# What `site health` says of a fault of tests/clusters/faults.yaml; of every other one it says
# nothing: nothing is to be seen of it while no job runs, it takes a measurement, another node to
# compare with, or a word in site.yaml.
SAYS = {
    "dead rail": "is DOWN|has no link",
    "slow rail": r"has \d+ of \d+ Gb/s",
    "mlx5_ib not loaded": "is not here",
    "inactive NVLink": r"GPU 1: NVLink 4 is inactive",
    "all NVLinks down": "no NVLink is active",
    "lost GPU": r"\d+ of \d+ GPUs",
    "GPU that wants a reset": "GPU 3 does not answer",
    "uncorrectable error in SRAM": "uncorrectable errors in SRAM since the driver was loaded",
    "Xid 46": "Xid",
    "Xid 149, fatal": "Xid",
    "NVSwitch's fatal SXid": "SXid",
}
UNPROMISED = {
    ("mlx5_ib not loaded", "efa"),
    ("dead rail", "mixed"),
    ("lost GPU", "mixed"),
}  # site.yaml says nothing of it
FAULTS = [(name, fault) for fault in clusters.faults() for name in fault["on"]]


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def lay_out(node: Node, folder: Path) -> None:
    """NODE's files and programs below FOLDER."""
    for name, text in node.files().items():
        if name.startswith(("/sys/", "/proc/")):
            path = folder / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
    cases = []
    for question in QUESTIONS:
        said = node.said(["nvidia-smi", *question.split()])
        words = question.partition("=")[0] if "=" in question else question
        refused = "=" in question and not said
        answer = "exit 2" if refused else f"printf %s {shlex.quote(said)}"
        pattern = question if "=" in question else words
        cases.append(f"{shlex.quote(pattern)}*) {answer} ;;")
    program(folder / "bin/nvidia-smi", 'case "$*" in\n' + "\n".join(cases) + "\nesac\n")
    (folder / "journal").write_text(as_journal(node.kernel_log()))
    program(folder / "bin/journalctl", f"cat {folder}/journal\n")
    for path in (folder / "bin").iterdir():
        path.write_text("#!/bin/sh\n" + path.read_text())


def look(node: Node, promised: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What the script says of NODE, of which site.yaml says what is PROMISED."""
    lay_out(node, folder)
    kind: dict[str, Any] = {}
    if "gpu" in promised:
        gpus = {
            "model": promised["gpu"],
            "count": promised["node_gpus"],
            "nvlink": promised.get("nvlink", False),
        }
        kind = {"gpus": gpus}
    kind |= {"hcas": promised.get("hcas", []), "hca_rate": int(promised.get("fabric_rate", 0))}
    places = {"store": str(folder), "lock_dir": str(folder), "module_root": str(folder)}
    site = Site.model_validate(
        {**places, "node_types": {"n": kind}, "health": {"folder": "/nowhere"}}
    )
    text = render_health(site).replace("PATH=/usr/sbin", f"PATH={folder}/bin:/usr/sbin", 1)
    program(folder / "health.sh", text)
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    env |= {"HPCSTACK_HEALTH_ROOT": str(folder), "HPCSTACK_NODE_TYPE": "n"}
    done = subprocess.run(
        ["dash", str(folder / "health.sh")], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == "", done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def look_at_all(name: str, fault: dict[str, Any] | None, folder: Path) -> dict[str, dict[str, Any]]:
    """{node: what the script says of it} of a cluster."""
    cluster = clusters.Cluster(name, {**fault, "change": fault["on"][name]} if fault else None)
    nodes = (
        cluster.nodes
        if not fault
        else [node for node in cluster.nodes if node.host == cluster.broken]
    )
    with ThreadPoolExecutor(4) as pool:
        asked = {
            node.host: pool.submit(look, node, cluster.spec["site"], folder / node.host)
            for node in nodes
        }
        return {host: one.result() for host, one in asked.items()}


@pytest.mark.soak(
    "the script reads nodes, not clusters", but=lambda name: name in ("nvl72", "mixed", "mig")
)
@pytest.mark.parametrize("name", clusters.names())
def test_of_healthy_clusters_it_says_nothing(tmp_path: Path, name: str) -> None:
    found = look_at_all(name, None, tmp_path)
    assert {host: one for host, one in found.items() if one["healthy"] is not True} == {}


@pytest.mark.soak("one cluster shows a fault", but=clusters.shows_first)
@pytest.mark.parametrize(
    ("name", "fault"), FAULTS, ids=lambda one: one if isinstance(one, str) else one["name"]
)
def test_of_each_fault_it_says_what_can_be_seen_of_it(
    tmp_path: Path, name: str, fault: dict[str, Any]
) -> None:
    (found,) = look_at_all(name, fault, tmp_path).values()
    why = "; ".join([*(one["why"] for one in found["failed"]), found["unknown"]])
    says = SAYS.get(fault["name"], "") if (fault["name"], name) not in UNPROMISED else ""
    if says:
        assert found["healthy"] is not True and re.search(says, why), found
    else:
        assert (why, found["healthy"]) == ("", True), found
