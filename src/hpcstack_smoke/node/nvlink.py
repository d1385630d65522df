"""Check a node's NVLink: its links, NVSwitch's fabric, and IMEX where NVLink spans nodes.

Tested in tests/unit/suite/test_clusters.py and tests/unit/smoke/test_nvidia.py.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, NamedTuple

from hpcstack_smoke.limits import Term, make_copy_term
from hpcstack_smoke.node import machine, nvidia
from hpcstack_smoke.node.gpu import fail_without_answer, name_model, read_rows
from hpcstack_smoke.node.topology import Mesh, find_mesh, parse_gpu_paths
from hpcstack_smoke.result import FAIL, PASS, WARN, Result, Skip, judge_result

# (active links, GB/s of each at least) that `nvidia-smi nvlink -s` shows of a healthy GPU. GPUs that
# bridges join are left out: whether a node has bridges is its site's choice. A rate of 50 is what
# Oracle's health checks ask for where nobody has shown the text; one of 0 is not known
LINKS = {
    "Tesla V100-SXM2-16GB": (6, 25.781),  # Azure/azhpc-diagnostics #73
    "Tesla V100-SXM2-32GB": (6, 25.781),
    "A100-SXM4-40GB": (12, 25.0),  # oracle-quickstart/oci-hpc, check_gpu_setup.py
    "A100-SXM4-80GB": (12, 25.0),  # nccl-tests #228
    "H100 80GB HBM3": (18, 26.562),  # bottlerocket-os #4418
    "H800": (8, 0.0),  # sglang #5765, NV8
    "H20": (18, 0.0),  # sglang #3685, NV18
    "H200": (18, 26.562),  # utkuozdemir/nvidia_gpu_exporter, internal/captures
    "B200": (18, 50.0),  # oracle-quickstart/oci-hpc, check_gpu_setup.py
    "B300 SXM6 AC": (18, 50.0),
    "GB200": (18, 53.125),  # k8s-test-infra #371
    "GB300": (18, 50.0),
}
SPANNING = ("GB200", "GB300")  # their NVLink domain is a rack, not a node
UNHEALTHY = ("Route Recovery in progress", "Route Unhealthy", "Access Timeout Recovery")
# The cluster UUID of a GPU that is in no NVLink domain
NO_CLUSTER = "00000000-0000-0000-0000-000000000000"
IMEX_CHANNELS = "/dev/nvidia-caps-imex-channels"
# The line of `nvidia-imex-ctl -N` on the domain as a whole
DOMAIN_STATE = re.compile(r"^Domain State: (\S+)", re.MULTILINE)
REMEDY = "drain the node; reset the GPUs and the fabric manager; check the NVLink bridge"


class Domain(NamedTuple):
    """An NVLink domain: GPUs with the same cluster UUID and clique reach each other by NVLink."""

    cluster: str
    clique: str


@fail_without_answer
def check_node_nvlink(request: Any) -> Result:
    """Check that every NVLink is active, at one rate, and that each GPU has as many as it should.

    Number and rate are those of LINKS for a GPU that is listed there, else what most of the node's
    GPUs have.
    """
    rows = read_rows(request, ("uuid", "mig.mode.current"))
    if any(row.get("mig.mode.current") == "Enabled" for row in rows):
        raise Skip("MIG is on: these GPUs have no NVLink to each other")
    said = nvidia.run_nvidia_smi(["nvlink", "-s"])
    found = nvidia.parse_links(said)
    active = {gpu: [one for one in links.values() if one.active] for gpu, links in found.items()}
    want, rate = LINKS.get(name_model(rows[0]), (0, 0.0))
    if not any(active.values()) and not request.nvlink:
        if not want:
            raise Skip("no NVLink on this node")
        if not said:
            raise Skip(f"UNKNOWN: nvidia-smi nvlink -s says nothing; {want} links on each are due")
        if len(rows) < 2:
            # As in a virtual machine with one GPU of a board, whose driver has NVLink switched off
            raise Skip("one GPU, whose NVLinks are all inactive: it has no other to reach")

    usual = want or _most_common([len(links) for links in active.values()], 0)
    if not rate:
        rates = [one.rate for links in active.values() for one in links if one.rate]
        rate = _most_common(rates, 0.0)
    bad = _find_link_faults(found, usual, rate, all_links=bool(want))

    expected = f"{usual or 'all'} links on each GPU"
    if rate:
        expected += f" at {rate:g} GB/s"
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


def _most_common(values: list[Any], default: Any) -> Any:
    """Return the most common of VALUES, DEFAULT where there are none."""
    counted = Counter(values).most_common(1)
    return counted[0][0] if counted else default


def _find_link_faults(
    found: dict[int, dict[int, nvidia.LinkState]], usual: int, rate: float, *, all_links: bool
) -> list[str]:
    """Return what is wrong with the links FOUND: which are inactive, too few or too slow.

    USUAL is how many active links a GPU should have, RATE the GB/s of each. Without ALL_LINKS a
    link that is inactive on every GPU is as it should be: an NVLink bridge connects only some.
    """
    used = {n for links in found.values() for n, one in links.items() if one.active}
    inactive = []
    for gpu, links in found.items():
        for n, one in links.items():
            if not one.active and (all_links or n in used):
                inactive.append((gpu, n))

    bad = [f"GPU {gpu}: link {n} is inactive" for gpu, n in inactive]
    are_named = {gpu for gpu, _ in inactive}
    for gpu, links in found.items():
        count = sum(one.active for one in links.values())
        if (count != usual or not count) and gpu not in are_named:
            bad.append(f"GPU {gpu}: {count} active link(s)")
    for gpu, links in found.items():
        for n, one in links.items():
            if one.active and one.rate < rate:
                bad.append(f"GPU {gpu}: link {n} at {one.rate:g} GB/s")
    if not found:
        bad.append("nvidia-smi shows no link")
    return bad


def read_mesh() -> Mesh:
    """Return how NVLink joins the GPUs of this node that the step has.

    A GPU with a dead link counts as the others: what is broken must not lower what is expected.
    """
    found = nvidia.parse_links(nvidia.run_nvidia_smi(["nvlink", "-s"]))
    counts = [sum(link.active for link in links.values()) for links in found.values()]
    return find_mesh(nvidia.run_nvidia_smi(["topo", "-m"]), max(counts, default=0))


def read_pair_term() -> Term | None:
    """Return what a copy reaches by NVLink between each two GPUs of this node, at least.

    None where some two of them have none between them, or where that is not known.
    """
    found = nvidia.parse_links(nvidia.run_nvidia_smi(["nvlink", "-s"]))
    rates = [link.rate for links in found.values() for link in links.values() if link.active]
    table = parse_gpu_paths(nvidia.run_nvidia_smi(["topo", "-m"]))
    rows = nvidia.query_gpus(("compute_cap",))
    capability = rows[0].get("compute_cap", "") if rows else ""
    links = min(table.values(), default=0)
    return make_copy_term(capability, links, _most_common(rates, 0.0))


def read_domains() -> dict[str, Domain]:
    """Return {GPU's index: its NVLink domain} of the GPUs that have joined one.

    A GPU has joined one where its fabric is completed with success and has a cluster UUID.
    """
    fields = ("index", "fabric.state", "fabric.status", "fabric.clusterUuid", "fabric.cliqueId")
    out = {}
    for row in nvidia.query_gpus(fields):
        is_complete = (
            row.get("fabric.state") == "Completed" and row.get("fabric.status") == "Success"
        )
        cluster = row.get("fabric.clusterUuid", NO_CLUSTER)
        if is_complete and cluster != NO_CLUSTER and "index" in row:
            out[row["index"]] = Domain(cluster, row.get("fabric.cliqueId", "0"))
    return out


def check_node_nvlink_fabric(request: Any) -> Result:
    """Check that the GPUs have joined the fabric that the fabric manager sets up.

    It must be completed, with success, and healthy. GPUs whose NVLink spans a rack must have one.
    On other GPUs it is checked where the driver reports it.
    """
    found = nvidia.parse_details(nvidia.run_nvidia_smi(["-q"]))
    states = []
    for gpu in found:
        state = {}
        for name in ("State", "Status", "CliqueId", "ClusterUUID"):
            if f"Fabric/{name}" in gpu:
                state[name] = gpu[f"Fabric/{name}"]
        states.append(state)
    models = [gpu.get("Product Name", "").removeprefix("NVIDIA ") for gpu in found]

    reported = any("State" in state for state in states)
    is_of_rack = any(name.startswith(SPANNING) for name in models)
    # A site whose NVLink domain is one node has boards without a rack's fabric (NVL4)
    spanning = is_of_rack and (reported or request.domain_nodes != 1)
    if not found or (not spanning and not reported):
        raise Skip("these GPUs have no NVSwitch, or the driver does not report its fabric")
    if spanning and not reported and not request.domain_nodes:
        remedy = (
            "set gpus: {domain_nodes: N} in site.yaml: 1 for boards whose NVLink ends at the node "
            "(NVL4), 18 for NVL72"
        )
        measured = "no GPU has joined a fabric"
        return Result(WARN, measured, "completed", "nvidia-smi -q, Fabric", remedy=remedy)

    bad = []
    for number, (gpu, state) in enumerate(zip(found, states)):
        fault = _describe_fault(gpu, state, spanning=spanning)
        if fault:
            bad.append(f"GPU {number}: {fault}")
    cliques = {(state.get("ClusterUUID", ""), state.get("CliqueId", "")) for state in states}
    if spanning and not bad and len(cliques) > 1:
        bad.append(f"the GPUs of this node are in {len(cliques)} cliques")

    measured = f"completed on {len(found)} GPU(s)"
    if spanning:
        measured += f", clique {states[0].get('CliqueId', '?')}"
    return judge_result(
        not bad,
        "; ".join(bad) or measured,
        "completed, with success, healthy",
        "nvidia-smi -q, Fabric",
        remedy="systemctl status nvidia-fabricmanager (on a rack: nvidia-imex, NMX); until it is "
        "healthy, NCCL silently uses the network in place of NVLink",
    )


def _describe_fault(gpu: dict[str, str], state: dict[str, str], *, spanning: bool) -> str:
    """Return what is wrong with one GPU's fabric, empty where nothing is.

    GPU is all that `nvidia-smi -q` says of it, STATE the state of its fabric. SPANNING: its NVLink
    spans nodes, so that it must have a cluster UUID.
    """
    if state.get("State", "N/A") != "Completed":
        return f"state {state.get('State', 'not reported')}"
    if state.get("Status", "Success") != "Success":
        return f"status {state['Status']}"
    if spanning and state.get("ClusterUUID", NO_CLUSTER) == NO_CLUSTER:
        return "no cluster UUID"
    if gpu.get("Fabric/Health/Summary", "Healthy") not in ("Healthy", "Not Supported"):
        return f"health {gpu['Fabric/Health/Summary']}"
    if gpu.get("Fabric/Health/Bandwidth", "Full") == "Degraded":
        return "degraded bandwidth"

    wrong = [name for name in UNHEALTHY if gpu.get(f"Fabric/Health/{name}", "False") == "True"]
    configuration = gpu.get("Fabric/Health/Incorrect Configuration", "None")
    if configuration not in ("None", "False", "Not Supported"):
        wrong.append(f"incorrect configuration: {configuration}")
    return ", ".join(wrong).lower()


def check_node_imex(request: Any) -> Result:
    """Check IMEX, which shares GPU memory between nodes where NVLink spans them.

    Its channel must be in this container, and its domain up, as far as the daemon can be asked.
    """
    rows = nvidia.query_gpus(("index", "name"))
    if not any(name_model(row).startswith(SPANNING) for row in rows) or request.domain_nodes == 1:
        raise Skip("no GPU here whose NVLink spans nodes")
    if not read_domains() and request.domain_nodes < 2:
        raise Skip("these GPUs have joined no fabric: see node.nvlink-fabric")
    if request.nodes < 2:
        raise Skip("one node: its own NVLink needs no IMEX")

    channels = machine.HERE.found(f"{IMEX_CHANNELS}/channel*")
    closed = [name for name in channels if not machine.HERE.opens(name)]
    measured = ""
    if not channels:
        measured = f"{IMEX_CHANNELS} is empty or missing"
    elif len(closed) == len(channels):
        measured = f"{closed[0]} cannot be opened"
    if measured:
        remedy = (
            "set ImexChannelCount and start nvidia-imex.service on the node; Enroot or Apptainer "
            "must pass the channel into the container"
        )
        return Result(FAIL, measured, "a channel", "nccl mnnvl.cc", remedy=remedy)

    state = DOMAIN_STATE.search(machine.HERE.said(["nvidia-imex-ctl", "-N"], 20))
    if state and state[1] != "UP":
        remedy = "find the node in nvidia-imex-ctl -N, then systemctl status nvidia-imex there"
        measured = f"IMEX's domain is {state[1]}"
        return Result(WARN, measured, "UP", "nvidia-imex-ctl -N", remedy=remedy)
    domain = "its domain is UP" if state else "no nvidia-imex-ctl here to ask for its domain"
    return Result(PASS, f"{len(channels)} channel(s); {domain}", "a channel")
