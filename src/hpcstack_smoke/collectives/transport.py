"""What NCCL's own log says of the transport of each pair of ranks: a silent fall-back to a slower
one is no PASS.

Each rank reads the log that its own process wrote, and tells the others what is in it in a few
words: as many files are opened as there are ranks, each where it was written.
"""

from __future__ import annotations

import glob
import os
import socket
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpcstack_smoke.collectives.domain import domain_of_node
from hpcstack_smoke.collectives.nccllog import Log, parse_log
from hpcstack_smoke.node import machine, sysfs
from hpcstack_smoke.node.nvlink import LINKS
from hpcstack_smoke.result import FAIL, PASS, WARN, Result, Skip

if TYPE_CHECKING:
    from hpcstack_smoke.context import Context
    from hpcstack_smoke.request import Request

DRAWN, EXAMPLES = 64, 4
FABRICS = ("infiniband", "roce", "slingshot", "efa")
SITE = "site.yaml"
SWITCHED_OFF = {"NCCL_IB_DISABLE": "1", "NCCL_MNNVL_ENABLE": "0", "NCCL_NVLS_ENABLE": "0", "NCCL_NET": "Socket",
                "NCCL_P2P_DISABLE": "1"}  # fmt: skip
NVLS_FROM = {
    "H200": 5,
    "H100 80GB HBM3": 5,
    "B200": 6,
}  # GPUs of a node: with fewer NVLS does not engage
REMEDY = {
    "Socket": "NCCL found no way to the HCAs: libibverbs (or the fabric's plugin) in the image, /dev/infiniband in the "
    "container, NCCL_IB_HCA, NCCL_SOCKET_IFNAME, NCCL_IB_DISABLE; memlock must be unlimited",
    "IB": (
        "load nvidia-peermem or use the open kernel module with dma-buf; look at ACS and "
        "NCCL_NET_GDR_LEVEL"
    ),
    "SHM": "no peer access between these GPUs: look at `nvidia-smi topo -p2p r`, ACS and the IOMMU",
    "NET": (
        "IMEX is not at work: node.imex, node.nvlink-fabric, nvidia-imex on each node, "
        "NCCL_MNNVL_ENABLE"
    ),
    "12": (
        "status 12 is a transport retry: look at the cable, the switch's port, the HCA's error "
        "counters (nccl #1405)"
    ),
}


@dataclass
class Heard:
    """What one rank's log says. `kinds`: {where: {transport: connections}}, where is within, domain
    or between.

    `examples`: for each where and transport a few pairs; `pairs`: all of them, in a run small
    enough to draw.
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
    """What the nodes have and the site promises. `fabric`: by whose word there is one, empty where
    nobody says so.

    `perhaps`: RoCE-capable ports that nobody calls a fabric. `nvlink`: GPUs of a node reach each
    other by it.
    """

    fabric: str = ""
    perhaps: bool = False
    nvlink: bool = False
    nvls: bool = False


def read_own_lines(output: str) -> list[str]:
    """What NCCL wrote in this process, in the newest round."""
    host = glob.escape(socket.gethostname().partition(".")[0])
    paths = glob.glob(os.path.join(glob.escape(output), f"nccl-*.{host}*.{os.getpid()}"))
    newest = max((os.path.basename(path).partition(".")[0] for path in paths), default="")
    out: list[str] = []
    for path in sorted(one for one in paths if os.path.basename(one).startswith(f"{newest}.")):
        with open(path, errors="replace") as file:
            out += file.readlines()
    return out


def check(context: Context) -> Result:
    """All ranks are connected by the best that the nodes have."""
    if not context.gpu:
        raise Skip("no GPU: NCCL does not run here")
    if context.world < 2:
        raise Skip("one rank: nothing is connected")
    name = context.gpu_name().removeprefix("NVIDIA ")
    fabric, perhaps = fabric_here(context.request)
    places = context.all((socket.gethostname(), domain_of_node(), fabric, perhaps))
    heard = summarise_log(
        parse_log(read_own_lines(context.output)),
        context.rank,
        [(one[0], one[1]) for one in places],
    )
    expected = Expected(
        fabric=next((one[2] for one in places if one[2]), ""),
        perhaps=any(one[3] for one in places),
        nvlink=context.request.nvlink or name in LINKS,
        nvls=context.per_node >= NVLS_FROM.get(name, 1 << 30),
    )
    return judge_transports(context.all(heard), expected)


def fabric_here(request: Request) -> tuple[str, bool]:
    """(by whose word this node has a fabric, whether it only has ports that could be one)."""
    if request.fabric in FABRICS or request.hcas:
        return SITE, False
    if request.fabric:
        return "", False
    ports = sysfs.of_fabric(sysfs.active_ports())
    if any(not port.ethernet for port in ports):
        return "the nodes' active ports", False
    if machine.HERE.found(f"{sysfs.CASSINI}/*"):
        return "the nodes' Slingshot adapters", False
    return "", bool(ports)


def summarise_log(log: Log, rank: int, places: list[tuple[str, str]]) -> Heard:
    """What LOG says of the connections of RANK. PLACES: (host, NVLink domain) of each rank."""
    heard = Heard(
        bool(log.pairs), log.version, log.network, log.hcas, (log.errors or [""])[0], log.nvls
    )
    for pair, kinds in sorted(log.pairs.items()):
        if max(pair) >= len(places):
            continue
        (host, domain), (other, its) = places[pair[0]], places[pair[1]]
        where = "between"
        if host == other:
            where = "within"
        elif domain and domain == its:
            where = "domain"
        for kind in sorted(kinds):
            counts = heard.kinds.setdefault(where, {})
            counts[kind] = counts.get(kind, 0) + 1
            seen = heard.examples.setdefault(f"{where} {kind}", [])
            if len(seen) < EXAMPLES:
                seen.append(
                    f"{pair[0]}-{pair[1]} ({host}, {other})"
                    if host != other
                    else f"{pair[0]}-{pair[1]} ({host})"
                )
        if len(places) <= DRAWN:
            heard.pairs[pair] = sorted(kinds)
    heard.off = [
        f"{name}={value}" for name, value in SWITCHED_OFF.items() if os.environ.get(name) == value
    ]
    return heard


def merge_transports(everyone: list[Heard]) -> tuple[dict[str, Counter[str]], dict[str, list[str]]]:
    """({where: {transport: connections}}, {where and transport: examples}) of all ranks."""
    kinds: dict[str, Counter[str]] = {}
    examples: dict[str, list[str]] = {}
    for heard in everyone:
        for where, counts in heard.kinds.items():
            kinds.setdefault(where, Counter()).update(counts)
        for name, pairs in heard.examples.items():
            examples[name] = list(dict.fromkeys([*examples.get(name, []), *pairs]))[:EXAMPLES]
    return kinds, examples


def judge_transports(everyone: list[Heard], expected: Expected) -> Result:
    """EVERYONE: what each rank heard, by rank."""
    silent = [rank for rank, heard in enumerate(everyone) if not heard.reported]
    if len(silent) == len(everyone):
        raise Skip("NCCL's log names no connection (NCCL_DEBUG_FILE may be set elsewhere)")
    kinds, examples = merge_transports(everyone)
    first = next(heard for heard in everyone if heard.reported)
    pairs = {pair: found for heard in everyone for pair, found in heard.pairs.items()}
    counted: Counter[str] = Counter(kind for found in pairs.values() for kind in found) or sum(
        kinds.values(), Counter()
    )
    unit = "pair" if pairs else "connection"
    measured = ", ".join(f"{count} {unit}(s) by {name}" for name, count in sorted(counted.items()))
    hcas = " ".join(dict.fromkeys(name for heard in everyone for name in heard.hcas))
    evidence = f"NCCL {first.version or '?'}, network {first.network or '?'}, HCAs {hcas or 'none'}"
    evidence += f"; logs of {len(everyone) - len(silent)} of {len(everyone)} ranks"
    figures = {f"pairs_{name.replace('+', '_')}": float(count) for name, count in counted.items()}
    more: dict[str, Any] = {
        "source": "NCCL's own log",
        "figures": figures,
        "series": _matrix(pairs, len(everyone)),
        "versions": {"nccl": first.version} if first.version else {},
    }
    if error := next((heard.error for heard in everyone if heard.error), ""):
        return Result(
            FAIL, measured, "no completion error", evidence=error, remedy=REMEDY["12"], **more
        )
    off = {word.partition("=")[0]: word for heard in everyone for word in heard.off}
    for status, said, remedy in _slower(kinds, examples, off, expected):
        return Result(
            status,
            f"{said}; {measured}",
            _wanted(kinds, expected),
            evidence=evidence,
            remedy=remedy,
            **more,
        )
    if (
        expected.nvls
        and any(heard.nvls is False for heard in everyone)
        and "NCCL_NVLS_ENABLE" not in off
    ):
        remedy = "look at the fabric manager on the nodes: node.nvlink-fabric"
        return Result(
            WARN,
            f"NVLS is not available; {measured}",
            "NVLS on these GPUs",
            evidence=evidence,
            remedy=remedy,
            **more,
        )
    if silent:
        return Result(
            WARN,
            f"{len(silent)} rank(s) left no log: {silent[:8]}; {measured}",
            "a log of each rank",
            evidence=evidence,
            remedy="the run's folder must be seen by all nodes",
            **more,
        )
    return Result(PASS, measured, _wanted(kinds, expected), evidence=evidence, **more)


def _wanted(kinds: dict[str, Counter[str]], expected: Expected) -> str:
    between = kinds.get("between", Counter())
    if any("+GDR" in name for name in between):
        return "P2P within a node, GPUDirect RDMA between"
    if kinds.get("domain"):
        return "P2P within a node and its NVLink domain"
    if expected.fabric:
        return f"no Socket on nodes with a fabric, by {expected.fabric}"
    return "P2P within a node; no fabric on these nodes" if between else "P2P within a node"


def _slower(
    kinds: dict[str, Counter[str]],
    examples: dict[str, list[str]],
    off: dict[str, str],
    expected: Expected,
) -> list[tuple[str, str, str]]:
    """(status, what is said, remedy) of what is slower than it should be, the worst first."""
    between, within, domain = (
        kinds.get(where, Counter()) for where in ("between", "within", "domain")
    )
    found = []
    if net := [name for name in domain if name != "P2P"]:
        said = (
            f"one NVLink domain, yet by {net[0]}: ranks {', '.join(examples[f'domain {net[0]}'])}"
        )
        status = WARN if "NCCL_MNNVL_ENABLE" in off else FAIL
        found.append((status, said + _because(off, "NCCL_MNNVL_ENABLE"), REMEDY["NET"]))
    if "Socket" in between and (expected.fabric or expected.perhaps):
        reason = next((name for name in ("NCCL_IB_DISABLE", "NCCL_NET") if name in off), "")
        sure = bool(expected.fabric) and (expected.fabric == SITE or not reason)
        said = f"by Socket: ranks {', '.join(examples['between Socket'])}" + _because(off, reason)
        hint = (
            ""
            if expected.fabric
            else "; a network card, not a fabric? `fabric: {kind: ethernet}` in site.yaml"
        )
        found.append((FAIL if sure else WARN, said, REMEDY["Socket"] + hint))
    plain = [name for name in between if name not in ("P2P", "Socket") and "+GDR" not in name]
    direct = any("+GDR" in name for name in between)
    if plain and (
        expected.nvlink or not direct
    ):  # a GPU on PCIe that is far from the port goes by the host's memory
        said = f"without GPUDirect: ranks {', '.join(examples[f'between {plain[0]}'])}"
        found.append((WARN, said, REMEDY["IB"]))
    if (slow := [name for name in ("Socket", "SHM") if name in within]) and (
        expected.nvlink or slow[0] == "Socket"
    ):
        said = f"within a node by {slow[0]}: ranks {', '.join(examples[f'within {slow[0]}'])}"
        found.append((WARN, said + _because(off, "NCCL_P2P_DISABLE"), REMEDY["SHM"]))
    return sorted(found, key=lambda one: one[0] != FAIL)


def _because(off: dict[str, str], name: str) -> str:
    return f" ({off[name]} is set)" if name in off else ""


def _matrix(pairs: dict[tuple[int, int], list[str]], world: int) -> list[dict[str, Any]]:
    """Which transport each pair uses, as a table to draw; nothing where it would be too large to
    read.
    """
    if not pairs or world > DRAWN:
        return []
    words = [
        ["+".join(pairs.get((min(a, b), max(a, b)), [])) for b in range(world)]
        for a in range(world)
    ]
    table = {"kind": "words", "name": "transport of each pair of ranks", "values": words}
    return [{**table, "labels": [str(rank) for rank in range(world)]}]
