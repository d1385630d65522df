"""Checks of a node's NVLink: its links, the fabric that an NVSwitch makes of them, and IMEX where
it spans nodes.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, NamedTuple

from hpcstack_smoke.node import machine, nvidia
from hpcstack_smoke.node.gpu import fail_without_answer, name_model, read_rows
from hpcstack_smoke.result import FAIL, PASS, WARN, Result, Skip, judge_result

# (links, GB/s of each) that `nvidia-smi nvlink -s` shows of a healthy GPU: bottlerocket-os #4418,
# k8s-test-infra #371
LINKS = {"H100 80GB HBM3": (18, 26.562), "GB200": (18, 53.125)}
SPANNING = ("GB200", "GB300")  # their NVLink domain is a rack, not a node
UNHEALTHY = ("Route Recovery in progress", "Route Unhealthy", "Access Timeout Recovery")
NO_CLUSTER = "00000000-0000-0000-0000-000000000000"
IMEX_CHANNELS = "/dev/nvidia-caps-imex-channels"
DOMAIN_STATE = re.compile(r"^Domain State: (\S+)", re.MULTILINE)
REMEDY = "drain the node: reset the GPUs and the fabric manager; look at the NVLink bridge"


class Domain(NamedTuple):
    """Which GPUs reach each other by NVLink: cluster UUID and clique, which are of one domain where
    both are alike.
    """

    cluster: str
    clique: str


@fail_without_answer
def nvlink(request: Any) -> Result:
    """Every link is active, as many on each GPU as on the others and as its model has, at one rate."""
    rows = read_rows(request, ("uuid", "mig.mode.current"))
    if any(row.get("mig.mode.current") == "Enabled" for row in rows):
        raise Skip("MIG is on: these GPUs have no NVLink to each other")
    found = nvidia.parse_links(nvidia.nvidia_smi(["nvlink", "-s"]))
    active = {gpu: [one for one in links.values() if one.active] for gpu, links in found.items()}
    want, rate = LINKS.get(name_model(rows[0]), (0, 0.0))
    if not any(active.values()) and not (request.nvlink or want):
        raise Skip("no NVLink on this node")
    counts = Counter(len(links) for links in active.values())
    usual = want or (counts.most_common(1)[0][0] if counts else 0)
    used = {
        n for links in found.values() for n, one in links.items() if one.active
    }  # a bridge leaves the others free
    inactive = [
        (gpu, n)
        for gpu, links in found.items()
        for n, one in links.items()
        if not one.active and (want or n in used)
    ]
    bad = [f"GPU {gpu}: link {n} is inactive" for gpu, n in inactive]
    are_named = {gpu for gpu, _ in inactive}
    bad += [
        f"GPU {gpu}: {len(links)} active link(s)"
        for gpu, links in active.items()
        if (len(links) != usual or not links) and gpu not in are_named
    ]
    rates = Counter(one.rate for links in active.values() for one in links if one.rate)
    rate = rate or (rates.most_common(1)[0][0] if rates else 0.0)
    bad += [
        f"GPU {gpu}: link {n} at {one.rate:g} GB/s"
        for gpu, links in found.items()
        for n, one in links.items()
        if one.active and one.rate < rate
    ]
    if not found:
        bad.append("nvidia-smi shows no link")
    expected = f"{usual or 'all'} links on each GPU" + (f" at {rate:g} GB/s" if rate else "")
    source = "the other GPUs"
    if want:
        source = "this model of GPU"
    elif request.nvlink:
        source = "the site"
    measured = "; ".join(bad[:12]) or f"{usual} links on each of {len(found)} GPU(s)"
    figures = {"nvlinks": float(sum(map(len, active.values())))}
    return judge_result(
        not bad, measured, expected, source, "nvidia-smi nvlink -s", REMEDY, figures=figures
    )


def read_domains() -> dict[str, Domain]:
    """{GPU's place: its NVLink domain} of the GPUs whose fabric is complete and has a name."""
    rows = nvidia.query_gpus(
        ("index", "fabric.state", "fabric.status", "fabric.clusterUuid", "fabric.cliqueId")
    )
    return {
        row["index"]: Domain(row["fabric.clusterUuid"], row.get("fabric.cliqueId", "0"))
        for row in rows
        if row.get("fabric.state") == "Completed"
        and row.get("fabric.status") == "Success"
        and row.get("fabric.clusterUuid", NO_CLUSTER) != NO_CLUSTER
        and "index" in row
    }


def fabric(request: Any) -> Result:
    """The GPUs have joined the fabric that the fabric manager makes: completed, with success,
    healthy.

    A GPU of a rack-wide domain must have one; of others, where the driver says what it is, it must
    be complete.
    """
    found = nvidia.parse_details(nvidia.nvidia_smi(["-q"]))
    states = [
        {
            name: gpu[f"Fabric/{name}"]
            for name in ("State", "Status", "CliqueId", "ClusterUUID")
            if f"Fabric/{name}" in gpu
        }
        for gpu in found
    ]
    names = [gpu.get("Product Name", "").removeprefix("NVIDIA ") for gpu in found]
    told = any("State" in one for one in states)
    spanning = any(name.startswith(SPANNING) for name in names) and (
        told or request.domain_nodes != 1
    )
    if not found or (not spanning and not told):
        raise Skip("these GPUs have no NVSwitch, or the driver does not say")
    if spanning and not told and not request.domain_nodes:
        remedy = (
            "gpus: {domain_nodes: 1} in site.yaml for boards whose NVLink ends at the node (NVL4), "
            "18 for NVL72"
        )
        return Result(
            WARN, "no GPU has joined a fabric", "completed", "nvidia-smi -q, Fabric", remedy=remedy
        )
    bad = [
        f"GPU {n}: {said}"
        for n, gpu in enumerate(found)
        if (said := _unfit(gpu, states[n], spanning=spanning))
    ]
    kinds = Counter((one.get("ClusterUUID", ""), one.get("CliqueId", "")) for one in states)
    if spanning and not bad and len(kinds) > 1:
        bad.append(f"the GPUs of this node are in {len(kinds)} cliques")
    first = states[0]
    measured = f"completed on {len(found)} GPU(s)" + (
        f", clique {first.get('CliqueId', '?')}" if spanning else ""
    )
    return judge_result(
        not bad,
        "; ".join(bad) or measured,
        "completed, with success, healthy",
        "nvidia-smi -q, Fabric",
        remedy="systemctl status nvidia-fabricmanager (on a rack: nvidia-imex, NMX); NVLink falls back to "
        "the network in silence",
    )


def _unfit(gpu: dict[str, str], state: dict[str, str], *, spanning: bool) -> str:
    """What is wrong with one GPU's fabric; empty where nothing is."""
    if state.get("State", "N/A") != "Completed":
        return f"state {state.get('State', 'not said')}"
    if state.get("Status", "Success") != "Success":
        return f"status {state['Status']}"
    if spanning and state.get("ClusterUUID", NO_CLUSTER) == NO_CLUSTER:
        return "no cluster UUID"
    if gpu.get("Fabric/Health/Summary", "Healthy") not in ("Healthy", "Not Supported"):
        return f"health {gpu['Fabric/Health/Summary']}"
    if gpu.get("Fabric/Health/Bandwidth", "Full") == "Degraded":
        return "degraded bandwidth"
    wrong = [name for name in UNHEALTHY if gpu.get(f"Fabric/Health/{name}", "False") == "True"]
    if gpu.get("Fabric/Health/Incorrect Configuration", "None") not in (
        "None",
        "False",
        "Not Supported",
    ):
        wrong.append(f"incorrect configuration: {gpu['Fabric/Health/Incorrect Configuration']}")
    return ", ".join(wrong).lower()


def imex(request: Any) -> Result:
    """Where NVLink spans nodes, memory is shared by IMEX: its channel is in this container, its
    daemon answers.
    """
    rows = nvidia.query_gpus(("index", "name"))
    if not any(name_model(row).startswith(SPANNING) for row in rows) or request.domain_nodes == 1:
        raise Skip("no GPU here whose NVLink spans nodes")
    if not read_domains() and request.domain_nodes < 2:
        raise Skip("these GPUs have joined no fabric: node.nvlink-fabric")
    if request.nodes < 2:
        raise Skip("one node: its own NVLink needs no IMEX")
    channels = machine.HERE.found(f"{IMEX_CHANNELS}/channel*")
    remedy = (
        "ImexChannelCount and nvidia-imex.service on the node; Enroot and Apptainer must bring the "
        "channel in"
    )
    if not channels:
        return Result(
            FAIL,
            f"{IMEX_CHANNELS} is empty or not here",
            "a channel",
            "nccl mnnvl.cc",
            remedy=remedy,
        )
    closed = [name for name in channels if not machine.HERE.opens(name)]
    if len(closed) == len(channels):
        return Result(
            FAIL, f"{closed[0]} cannot be opened", "a channel", "nccl mnnvl.cc", remedy=remedy
        )
    state = DOMAIN_STATE.search(machine.HERE.said(["nvidia-imex-ctl", "-N"], 20))
    if state and state[1] != "UP":
        return Result(
            WARN,
            f"IMEX's domain is {state[1]}",
            "UP",
            "nvidia-imex-ctl -N",
            remedy="nvidia-imex-ctl -N names the node: systemctl status nvidia-imex there",
        )
    said = "its domain is UP" if state else "no nvidia-imex-ctl here to ask for its domain"
    return Result(PASS, f"{len(channels)} channel(s); {said}", "a channel")
