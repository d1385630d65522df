"""Judge the transport of each pair of ranks by NCCL's own log.

NCCL falls back to a slower transport without an error; this check does not let that pass. Each
rank reads only the log that its own process wrote, where it was written, and sends the others a
short summary.

Tested in tests/unit/smoke/test_nccllog.py and tests/unit/suite/test_clusters.py.
"""

from __future__ import annotations

import glob
import os
import socket
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from hpcstack_smoke.collectives.domain import find_domain_of_node
from hpcstack_smoke.collectives.nccllog import Log, parse_log, select_lines, uses_gpudirect
from hpcstack_smoke.node import machine, sysfs
from hpcstack_smoke.node.nvlink import LINKS
from hpcstack_smoke.result import FAIL, PASS, WARN, Result, Skip, write_document

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcstack_smoke.context import Context
    from hpcstack_smoke.request import Request

# Ranks up to which all pairs are drawn as a table; pairs that are shown as examples
DRAWN, EXAMPLES = 64, 4
FABRICS = ("infiniband", "roce", "slingshot", "efa")
# What `Expected.fabric` says where the site promises a fabric
SITE = "site.yaml"
# Settings of NCCL by which a user switches a fast transport off
SWITCHED_OFF = {
    "NCCL_IB_DISABLE": "1",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_NET": "Socket",
    "NCCL_P2P_DISABLE": "1",
}
# How many GPUs of a node must take part for NVLS to engage, by the GPU's name
NVLS_FROM = {"H200": 5, "H100 80GB HBM3": 5, "B200": 6}
# What to do where ranks are connected by Socket, by IB without GPUDirect, by SHM within a node, by
# the network within an NVLink domain, and after a completion error
REMEDY = {
    "Socket": (
        "NCCL could not use the HCAs: check libibverbs (or the fabric's plugin) in the image, "
        "/dev/infiniband in the container, NCCL_IB_HCA, NCCL_SOCKET_IFNAME, NCCL_IB_DISABLE, and "
        "that memlock is unlimited"
    ),
    "IB": (
        "load nvidia-peermem, or use the open kernel module with dma-buf; check ACS and "
        "NCCL_NET_GDR_LEVEL"
    ),
    "SHM": (
        "these GPUs have no peer access to each other: check `nvidia-smi topo -p2p r`, ACS and the "
        "IOMMU"
    ),
    "NET": (
        "IMEX does not work: check node.imex, node.nvlink-fabric, nvidia-imex on each node, "
        "NCCL_MNNVL_ENABLE"
    ),
    "12": (
        "status 12 means that transport retries were exhausted: check the cable, the switch port "
        "and the HCA's error counters (nccl #1405)"
    ),
}


@dataclass
class Heard:
    """What one rank's log says.

    `kinds`: {where: {transport: connections}}; where is `within` a node, within an NVLink `domain`,
    or `between` nodes. `examples`: {where and transport: a few pairs}. `pairs`: all pairs with
    their transports, in a run that is small enough to draw. `off`: settings of SWITCHED_OFF that
    this rank has.
    """

    reported: bool = False
    version: str = ""
    network: str = ""
    hcas: list[str] = field(default_factory=list)
    error: str = ""
    nvls: bool | None = None
    kinds: dict[str, dict[str, int]] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    pairs: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    off: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Expected:
    """What the nodes have and the site promises.

    `fabric`: what says that there is one (site.yaml, active ports), empty where nothing does.
    `perhaps`: there are ports that could do RoCE, but nothing says that they are a fabric.
    `nvlink`: the GPUs of a node have NVLink to each other. `nvls`: NVLS should engage on them.
    """

    fabric: str = ""
    perhaps: bool = False
    nvlink: bool = False
    nvls: bool = False


def read_own_lines(output: str) -> list[str]:
    """Return what NCCL wrote in this process, in the newest round, to the folder OUTPUT.

    NCCL's files are named nccl-ROUND.HOST.PROCESS there.
    """
    host = glob.escape(socket.gethostname().partition(".")[0])
    paths = glob.glob(os.path.join(glob.escape(output), f"nccl-*.{host}*.{os.getpid()}"))
    newest = max((os.path.basename(path).partition(".")[0] for path in paths), default="")
    out: list[str] = []
    for path in sorted(paths):
        if not os.path.basename(path).startswith(f"{newest}."):
            continue
        with open(path, errors="replace") as file:
            out += file.readlines()
    return out


def check_nccl_transport(context: Context) -> Result:
    """Check that all ranks are connected by the best transport that the nodes have."""
    if not context.gpu:
        raise Skip("no GPU: NCCL does not run here")
    if context.world < 2:
        raise Skip("one rank: nothing is connected")

    fabric, perhaps = find_fabric_here(context.request)
    places = context.all((socket.gethostname(), find_domain_of_node(), fabric, perhaps))
    lines = read_own_lines(context.output)
    hosts = [(host, domain) for host, domain, _, _ in places]
    off = list_switched_off(os.environ)
    heard = summarise_log(parse_log(lines), context.rank, hosts, off)

    name = context.gpu_name().removeprefix("NVIDIA ")
    expected = Expected(
        fabric=next((one[2] for one in places if one[2]), ""),
        perhaps=any(one[3] for one in places),
        nvlink=context.request.nvlink or name in LINKS,
        # NVLS is not expected of a GPU that the table lacks
        nvls=context.per_node >= NVLS_FROM.get(name, 1 << 30),
    )
    if context.world <= DRAWN:
        kept = {"rank": context.rank, "lines": select_lines(lines), "off": off}
        if context.rank == 0:
            kept |= {"hosts": hosts, "expected": asdict(expected)}
        write_document(context.output, f"transport-{context.rank}.json", kept)
    return judge_transports(context.all(heard), expected)


def judge_kept_lines(documents: Sequence[Mapping[str, Any]]) -> Result:
    """Judge again the lines that all ranks of a run kept, in the order of ranks."""
    first = documents[0]
    hosts = [(str(host), str(domain)) for host, domain in first["hosts"]]
    everyone = [
        summarise_log(parse_log(one["lines"]), int(one["rank"]), hosts, one["off"])
        for one in documents
    ]
    return judge_transports(everyone, Expected(**first["expected"]))


def list_switched_off(environment: Mapping[str, str]) -> list[str]:
    """Return the settings in ENVIRONMENT that switch a fast transport off, as NAME=VALUE."""
    return [
        f"{name}={value}" for name, value in SWITCHED_OFF.items() if environment.get(name) == value
    ]


def find_fabric_here(request: Request) -> tuple[str, bool]:
    """Return (what says that this node has a fabric, whether it only has ports that could be one).

    The first is empty where nothing says so.
    """
    if request.fabric in FABRICS or request.hcas:
        return SITE, False
    if request.fabric:
        return "", False
    ports = sysfs.select_fabric_ports(sysfs.active_ports())
    if any(not port.ethernet for port in ports):
        return "the nodes' active ports", False
    if machine.HERE.found(f"{sysfs.CASSINI}/*"):
        return "the nodes' Slingshot adapters", False
    return "", bool(ports)


def summarise_log(
    log: Log, rank: int, places: list[tuple[str, str]], off: Sequence[str] = ()
) -> Heard:
    """Return what LOG, which RANK wrote, says of connections.

    PLACES: (host, NVLink domain) of each rank. OFF: settings of SWITCHED_OFF that the rank has.
    """
    heard = Heard(
        reported=bool(log.pairs),
        version=log.version,
        network=log.network,
        hcas=log.hcas,
        error=log.errors[0] if log.errors else "",
        nvls=log.nvls,
        off=list(off),
    )
    for pair, kinds in sorted(log.pairs.items()):
        if max(pair) >= len(places):
            continue
        host, domain = places[pair[0]]
        other_host, other_domain = places[pair[1]]
        where = "between"
        example = f"{pair[0]}-{pair[1]} ({host}, {other_host})"
        if host == other_host:
            where = "within"
            example = f"{pair[0]}-{pair[1]} ({host})"
        elif domain and domain == other_domain:
            where = "domain"

        for kind in sorted(kinds):
            counts = heard.kinds.setdefault(where, {})
            counts[kind] = counts.get(kind, 0) + 1
            examples = heard.examples.setdefault(f"{where} {kind}", [])
            if len(examples) < EXAMPLES:
                examples.append(example)
        if len(places) <= DRAWN:
            heard.pairs[pair] = sorted(kinds)

    return heard


def merge_transports(everyone: list[Heard]) -> tuple[dict[str, Counter[str]], dict[str, list[str]]]:
    """Return ({where: {transport: connections}}, {where and transport: examples}) of all ranks."""
    kinds: dict[str, Counter[str]] = {}
    examples: dict[str, list[str]] = {}
    for heard in everyone:
        for where, counts in heard.kinds.items():
            kinds.setdefault(where, Counter()).update(counts)
        for name, pairs in heard.examples.items():
            examples[name] = list(dict.fromkeys([*examples.get(name, []), *pairs]))[:EXAMPLES]
    return kinds, examples


def judge_transports(everyone: list[Heard], expected: Expected) -> Result:
    """Judge what EVERYONE heard, by rank, by what is EXPECTED of the nodes.

    The worst finding decides: a completion error, then a slower transport than the nodes have, NVLS
    that is not available, and ranks without a log. Raise Skip where no log names a connection.
    """
    silent = [rank for rank, heard in enumerate(everyone) if not heard.reported]
    if len(silent) == len(everyone):
        raise Skip("NCCL's log names no connection (NCCL_DEBUG_FILE may be set elsewhere)")

    kinds, examples = merge_transports(everyone)
    first = next(heard for heard in everyone if heard.reported)
    pairs = {pair: found for heard in everyone for pair, found in heard.pairs.items()}
    # Both ranks of a pair may report it: without the pairs themselves only connections are counted
    unit = "pair"
    counted: Counter[str] = Counter(kind for found in pairs.values() for kind in found)
    if not pairs:
        unit = "connection"
        counted = sum(kinds.values(), Counter())
    measured = ", ".join(f"{count} {unit}(s) by {name}" for name, count in sorted(counted.items()))

    hcas = " ".join(dict.fromkeys(name for heard in everyone for name in heard.hcas))
    evidence = f"NCCL {first.version or '?'}, network {first.network or '?'}, HCAs {hcas or 'none'}"
    evidence += f"; logs of {len(everyone) - len(silent)} of {len(everyone)} ranks"
    figures = {f"pairs_{name.replace('+', '_')}": float(count) for name, count in counted.items()}
    more: dict[str, Any] = {
        "source": "NCCL's own log",
        "figures": figures,
        "series": _draw_pairs(pairs, len(everyone)),
        "versions": {"nccl": first.version} if first.version else {},
    }

    error = next((heard.error for heard in everyone if heard.error), "")
    if error:
        wanted = "no completion error"
        return Result(FAIL, measured, wanted, evidence=error, remedy=REMEDY["12"], **more)

    more["evidence"] = evidence
    wanted = _describe_expected(kinds, expected)
    off = {word.partition("=")[0]: word for heard in everyone for word in heard.off}
    slower = _find_slower(kinds, examples, off, expected)
    if slower:
        status, finding, remedy = slower[0]
        return Result(status, f"{finding}; {measured}", wanted, remedy=remedy, **more)
    lacks_nvls = expected.nvls and any(heard.nvls is False for heard in everyone)
    if lacks_nvls and "NCCL_NVLS_ENABLE" not in off:
        remedy = "check the fabric manager on the nodes: node.nvlink-fabric"
        finding = f"NVLS is not available; {measured}"
        return Result(WARN, finding, "NVLS on these GPUs", remedy=remedy, **more)
    if silent:
        remedy = "put the run's folder where all nodes see it"
        finding = f"{len(silent)} rank(s) left no log: {silent[:8]}; {measured}"
        return Result(WARN, finding, "a log of each rank", remedy=remedy, **more)
    return Result(PASS, measured, wanted, **more)


def _describe_expected(kinds: dict[str, Counter[str]], expected: Expected) -> str:
    """Return what the transports should be on these nodes."""
    between = kinds.get("between", Counter())
    if any(map(uses_gpudirect, between)):
        return "P2P within a node, GPUDirect RDMA between nodes"
    if kinds.get("domain"):
        return "P2P within a node and its NVLink domain"
    if expected.fabric:
        return f"no Socket on nodes with a fabric, by {expected.fabric}"
    if between:
        return "P2P within a node; no fabric on these nodes"
    return "P2P within a node"


def _find_slower(
    kinds: dict[str, Counter[str]],
    examples: dict[str, list[str]],
    off: dict[str, str],
    expected: Expected,
) -> list[tuple[str, str, str]]:
    """Return (status, finding, remedy) of what is slower than it should be, FAILs first.

    KINDS and EXAMPLES are those of `merge_transports`. OFF is {name: NAME=VALUE} of the settings
    that switch a transport off.
    """
    between = kinds.get("between", Counter())
    within = kinds.get("within", Counter())
    found = []

    net = [name for name in kinds.get("domain", Counter()) if name != "P2P"]
    if net:
        finding = f"one NVLink domain, yet connected by {net[0]}: "
        finding += _list_ranks(examples, "domain", net[0])
        finding += _name_setting(off, "NCCL_MNNVL_ENABLE")
        status = WARN if "NCCL_MNNVL_ENABLE" in off else FAIL
        found.append((status, finding, REMEDY["NET"]))

    if "Socket" in between and (expected.fabric or expected.perhaps):
        setting = next((name for name in ("NCCL_IB_DISABLE", "NCCL_NET") if name in off), "")
        finding = f"connected by Socket: {_list_ranks(examples, 'between', 'Socket')}"
        finding += _name_setting(off, setting)
        remedy = REMEDY["Socket"]
        if not expected.fabric:
            remedy += "; if it is no fabric, set `fabric: {kind: ethernet}` in site.yaml"
        # A fabric that the site promises must not be switched off by a setting
        status = WARN
        if expected.fabric == SITE or (expected.fabric and not setting):
            status = FAIL
        found.append((status, finding, remedy))

    without = [
        name for name in between if name not in ("P2P", "Socket") and not uses_gpudirect(name)
    ]
    direct = any(map(uses_gpudirect, between))
    # Without NVLink, a GPU far from the port goes through host memory even where others do not
    if without and (expected.nvlink or not direct):
        finding = f"connected without GPUDirect: {_list_ranks(examples, 'between', without[0])}"
        found.append((WARN, finding, REMEDY["IB"]))

    slow = [name for name in ("Socket", "SHM") if name in within]
    # Without NVLink, SHM may be the best: GPUs on PCIe of two sockets
    if slow and (expected.nvlink or slow[0] == "Socket"):
        finding = (
            f"connected by {slow[0]} within a node: {_list_ranks(examples, 'within', slow[0])}"
        )
        finding += _name_setting(off, "NCCL_P2P_DISABLE")
        found.append((WARN, finding, REMEDY["SHM"]))
    return sorted(found, key=lambda one: one[0] != FAIL)


def _list_ranks(examples: dict[str, list[str]], where: str, transport: str) -> str:
    """Return `ranks 0-1 (HOST, HOST), ...`, the examples of TRANSPORT at WHERE."""
    return f"ranks {', '.join(examples[f'{where} {transport}'])}"


def _name_setting(off: dict[str, str], name: str) -> str:
    """Return ` (NAME=VALUE is set)` where the setting NAME is in OFF, else nothing."""
    return f" ({off[name]} is set)" if name in off else ""


def _draw_pairs(pairs: dict[tuple[int, int], list[str]], world: int) -> list[dict[str, Any]]:
    """Return the table of each pair's transport, to be drawn; none if it is too large to read."""
    if not pairs or world > DRAWN:
        return []
    rows = []
    for a in range(world):
        rows.append(["+".join(pairs.get((min(a, b), max(a, b)), [])) for b in range(world)])
    return [
        {
            "kind": "words",
            "name": "transport of each pair of ranks",
            "values": rows,
            "labels": [str(rank) for rank in range(world)],
        }
    ]
