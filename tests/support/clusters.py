"""Made-up clusters (tests/clusters): their nodes' files and programs, rendered, and the suite's
checks run on them.

What nvidia-smi, sysfs, the kernel's log and NCCL say is made in their forms, and read by the
suite's own readers; the figures of measurements are the cluster's, and judged by the suite's own
judges. Nothing here decides a verdict.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from hpcstack.report import Report
from hpcstack.suite.judge import judge_report
from hpcstack.suite.outcomes import RunFiles, SuiteRun, make_host_rows, make_outcomes
from hpcstack_smoke.agent import import_check
from hpcstack_smoke.collectives import line, pairs, transport
from hpcstack_smoke.collectives.nccllog import select_lines
from hpcstack_smoke.context import Context
from hpcstack_smoke.gpu import judge as gpu_judge
from hpcstack_smoke.gpu.same import judge_same
from hpcstack_smoke.node import counters, fabric, inventory, machine
from hpcstack_smoke.node.nvlink import LINKS, read_pair_term
from hpcstack_smoke.request import Request
from hpcstack_smoke.result import PASS, Result, Skip, run_check
from hpcstack_smoke.select import CHECKS
from support.nodes import Node

CLUSTERS = Path(__file__).parents[1] / "clusters"
ON_NODES = (
    "node.driver", "node.gpus", "node.ecc", "node.xid", "node.throttle", "node.pcie", "node.nvlink",
    "node.nvlink-fabric", "node.imex", "node.persistence", "fabric.hcas", "fabric.rate", "fabric.gid", "fabric.mtu",
    "fabric.gdr",
)  # fmt: skip
AFTER = ("node.counters", "fabric.counters")
BY_RANKS = ("node.same", "node.hbm", "node.matmul", "node.copies", "node.p2p", "nccl.transport", "nccl.bandwidth",
            "nccl.ring", "nccl.pairs")  # fmt: skip
CODES = (*ON_NODES, *AFTER, *BY_RANKS, "node.alike")


@cache
def load(name: str) -> dict[str, Any]:
    """The cluster NAME, as its file says."""
    found: dict[str, Any] = yaml.safe_load((CLUSTERS / f"{name}.yaml").read_text())
    return found


def names() -> list[str]:
    return sorted(path.stem for path in CLUSTERS.glob("*.yaml") if path.stem != "faults")


@cache
def faults() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((CLUSTERS / "faults.yaml").read_text())
    return found


def shows_first(name: str, fault: dict[str, Any]) -> bool:
    """Whether FAULT is tried on the cluster NAME in ci/test: on the first that can have it, and on
    the two whose nodes differ most from all others.
    """
    return name in ("nvl72", "mixed") or name == next(iter(fault["on"]))


def apart(one: Any) -> Any:
    """ONE with nothing shared: what YAML's aliases name are many things, and a fault breaks one of
    them.
    """
    if isinstance(one, dict):
        return {key: apart(value) for key, value in one.items()}
    return list(one) if isinstance(one, list) else one


def change(place: dict[str, Any], path: str, value: Any) -> None:
    """PLACE with VALUE at PATH, whose steps are parted by `/`."""
    *steps, last = path.split("/")
    for step in steps:
        place = place.setdefault(step, {})
    place[last] = value


class Cluster:
    """One cluster, with FAULT if there is one, and with what its site PROMISES or without."""

    def __init__(
        self, name: str, fault: dict[str, Any] | None = None, *, promised: bool = True
    ) -> None:
        spec = load(name)
        self.nodes: list[Node] = []
        broken = spec["nodes"][fault.get("place", 1) if fault else 0]
        for place, host in enumerate(spec["nodes"]):
            own = {
                key: value for key, value in spec.items() if key not in ("nodes", "other", "site")
            }
            own = apart(
                {
                    **own,
                    **spec.get("other", {}).get(host, {}),
                    "domain": spec.get("domains", {}).get(host),
                }
            )
            if fault and (host == broken or fault.get("everywhere")):
                for path, value in fault.get("change", {}).items():
                    change(own, path, value)
            self.nodes.append(Node(host, place, own))
        self.broken = broken
        self.spec = spec
        self.fault = fault or {}
        site = spec["site"] if promised else {}
        ranks = spec.get("ranks", spec["gpu"]["count"])
        self.ranks = ranks
        self.request = Request(
            output="/run", gpus=ranks, ranks=ranks, nodes=len(self.nodes), tier="standard", fabric=site.get("fabric", ""),
            hcas=tuple(site.get("hcas", ())), fabric_rate=float(site.get("fabric_rate", 0)), gpu=site.get("gpu", ""),
            node_gpus=site.get("node_gpus", 0), nvlink=site.get("nvlink", False),
            domain_nodes=site.get("domain_nodes", 0),
        )  # fmt: skip
        self.promised = {key: value for key, value in site.items() if key != "gpu"}

    @property
    def world(self) -> int:
        return int(self.ranks) * len(self.nodes)

    def places(self) -> list[tuple[Node, int]]:
        """(node, local rank) of each rank."""
        return [(node, local) for node in self.nodes for local in range(self.ranks)]


@contextlib.contextmanager
def on(node: Node) -> Iterator[None]:
    """What looks at the machine looks at NODE."""
    before = machine.HERE
    machine.HERE = node.machine
    try:
        yield
    finally:
        machine.HERE = before


def judged(cluster: Cluster) -> Report:
    """The report of a standard run on CLUSTER: the checks of CODES."""
    found = RunFiles(backend="nccl")
    for node in cluster.nodes:
        with on(node):
            found.hosts.add(node.host)
            found.inventory[node.host] = inventory.make_inventory(cluster.request)
            found.rows += [_node_row(code, cluster, node) for code in ON_NODES]
            found.rows += _after(cluster, node)
    found.rows += _rank_rows(cluster)
    nodes = len(cluster.nodes)
    asked = Request("", ",".join(CODES), "standard", nodes=nodes, ranks=cluster.world // nodes)
    size = SuiteRun(asked)
    found.rows += make_host_rows(size, found.inventory)
    found.seen = set(range(cluster.world))
    report = Report(
        stack="s-1", image="/i", image_sha256="0" * 64, suite="0", runtime="pyxis", tier="standard", backend="nccl",
        nodes=tuple(node.host for node in cluster.nodes), world_size=cluster.world, seconds=1.0,
        started="2026-01-01T00:00:00+00:00", inventory=found.inventory, promised=cluster.promised,
        outcomes=tuple(make_outcomes(size, found, "")),
    )  # fmt: skip
    return judge_report(report, [], {})


def _node_row(code: str, cluster: Cluster, node: Node) -> dict[str, Any]:
    check = next(one for one in CHECKS if one.code == code)
    return run_check(code, lambda: import_check(check)(cluster.request), node.host)


def _after(cluster: Cluster, node: Node) -> list[dict[str, Any]]:
    """The counters, before and after what the fault lets them gain."""
    from hpcstack_smoke.node import sysfs

    node.gained = False
    before, ports = counters.read_counters(), sysfs.read_error_counters()
    node.gained = True
    return [
        run_check(
            "node.counters",
            lambda: counters.judge_counter_gains(before, counters.read_counters()),
            node.host,
        ),
        run_check(
            "fabric.counters",
            lambda: fabric.judge_port_gains(ports, sysfs.read_error_counters()),
            node.host,
        ),
    ]


def _rank_rows(cluster: Cluster) -> list[dict[str, Any]]:
    if not cluster.spec["measured"]:  # no NCCL here: MIG
        return [_row(code, f"{node.host}:{rank}", Skip("MIG"))
                for code in BY_RANKS for rank, (node, _) in enumerate(cluster.places())]  # fmt: skip
    out = []
    for code, values in _by_ranks(cluster).items():
        out += [_row(code, f"{node.host}:{rank}", value)
                for (rank, (node, _)), value in zip(enumerate(cluster.places()), values, strict=True)]  # fmt: skip
    return out


def _row(code: str, where: str, value: Result | Skip) -> dict[str, Any]:
    def give() -> Result:
        if isinstance(value, Skip):
            raise value
        return value

    return run_check(code, give, where)


def attempt(work: Any) -> Result | Skip:
    try:
        found: Result = work()
    except Skip as reason:
        return reason
    return found


def _by_ranks(cluster: Cluster) -> dict[str, list[Result | Skip]]:
    """{code: the result of each rank}."""
    request, places = cluster.request, cluster.places()
    every: dict[str, list[Result | Skip]] = {code: [] for code in BY_RANKS}
    for node, local in places:
        name, figures = node.gpu["name"], node.figures(local)
        with on(node):
            rows = node.under_load(local)
            every["node.hbm"].append(gpu_judge.judge_hbm(figures["hbm"], name))
            every["node.matmul"].append(
                gpu_judge.judge_matmul({"bf16": figures["bf16"]}, rows, name, right=True)
            )
            every["node.copies"].append(
                gpu_judge.judge_host(figures["h2d"], figures["d2h"], rows, name)
            )
        every["node.p2p"].append(_peers(cluster, node))
    same = judge_same([(node.host, node.runs_on()) for node, _ in places])
    shared = {
        "node.same": same, "nccl.transport": attempt(lambda: _transport(cluster)),
        "nccl.bandwidth": _bandwidth(cluster), "nccl.ring": attempt(lambda: _ring(cluster)),
        "nccl.pairs": _pairs(cluster),
    }  # fmt: skip
    for code, value in shared.items():
        every[code] = [value] * len(places)
    assert request.nodes == len(cluster.nodes)
    return every


def _peers(cluster: Cluster, node: Node) -> Result | Skip:
    count = node.gpu["count"]
    if count < 2:
        return Skip("one GPU")
    table = [[0.0 if a == b else min(node.figures(a)["p2p"], node.figures(b)["p2p"]) for b in range(count)]
             for a in range(count)]  # fmt: skip
    with on(node):
        pair = read_pair_term()
    return gpu_judge.judge_peers(table, [], node.gpu["name"], board=count, nvlink=pair)


def _transport(cluster: Cluster) -> Result:
    return transport.judge_kept_lines(transport_documents(cluster))


def transport_documents(cluster: Cluster) -> list[dict[str, Any]]:
    """What each rank keeps of its own log, as transport.check_nccl_transport does."""
    places = []
    fabrics = []
    for node, _ in cluster.places():
        with on(node):
            places.append((node.host, node.domain_name()))
            fabrics.append(transport.find_fabric_here(cluster.request))
    name = cluster.nodes[0].gpu["name"].removeprefix("NVIDIA ")
    expected = transport.Expected(
        fabric=next((one[0] for one in fabrics if one[0]), ""), perhaps=any(one[1] for one in fabrics),
        nvlink=cluster.request.nvlink or name in LINKS,
        nvls=cluster.ranks >= transport.NVLS_FROM.get(name, 1 << 30),
    )  # fmt: skip
    made: list[dict[str, Any]] = [
        {
            "rank": rank,
            "lines": select_lines(node.nccl_log(rank, local, cluster)),
            "off": transport.list_switched_off(os.environ),
        }
        for rank, (node, local) in enumerate(cluster.places())
    ]
    made[0] |= {"hosts": places, "expected": asdict(expected)}
    return made


def _bandwidth(cluster: Cluster) -> Result:
    """all_reduce at each size that the cluster gives, of the slowest node: a straggler slows all."""
    share = min(node.measured.get("share", 1.0) for node in cluster.nodes)
    found = {
        int(size): value * share for size, value in cluster.nodes[0].measured["all_reduce"].items()
    }
    figures = {f"all_reduce_float32_{size}_busbw_GB_s": value for size, value in found.items()}
    return Result(PASS, "measured", figures=figures)


def _ring(cluster: Cluster) -> Result:
    domains = {node.domain_name() for node in cluster.nodes}
    if len(domains) == 1 and domains != {""}:
        raise Skip("all nodes are in one NVLink domain")
    share = min(node.measured.get("share", 1.0) for node in cluster.nodes)
    made = Result(PASS, "measured", figures={"all_reduce_float32_1073741824_busbw_GB_s":
                                             cluster.nodes[0].measured["ring"] * share})  # fmt: skip
    found = []
    for node in cluster.nodes:
        with on(node):
            found.append(line.find_ring_limit(_context(cluster, node)))
    limits = [limit for limit, _ in found if limit is not None]
    limit = None
    if len(limits) == len(cluster.nodes):
        limit = min(limits, key=lambda one: one.rate)
    return line.judge_ring(made, limit, cluster.request.fabric, promised=found[0][1])


class _Rank(Context):
    """A rank on a made-up node, whose GPU has that node's name."""

    def gpu_name(self) -> str:
        return str(self.device)


def _context(cluster: Cluster, node: Node | None = None) -> Context:
    return _Rank(
        0,
        cluster.world,
        0,
        len(cluster.nodes),
        "nccl",
        True,
        (node or cluster.nodes[0]).gpu["name"],
        cores=1 << 10,
        request=cluster.request,
    )


def _pairs(cluster: Cluster) -> Result | Skip:
    matrix: pairs.Matrix = {}
    for a, one in enumerate(cluster.nodes):
        for b in range(a + 1, len(cluster.nodes)):
            other = cluster.nodes[b]
            together = (
                bool(one.domain_name())
                and one.domain_name() == other.domain_name()
                and one.by_nvlink(other)
            )
            value = one.measured["pair_in_domain"] if together else one.measured["pair"]
            slow = min(one.measured.get("share", 1.0), other.measured.get("share", 1.0))
            rails = [
                value * slow * min(one.rail_share(rail), other.rail_share(rail))
                for rail in range(cluster.ranks)
            ]
            matrix[a, b] = rails
    hosts = [node.host for node in cluster.nodes]
    request = cluster.request
    apart = True
    for node in cluster.nodes:
        with on(node):
            apart = apart and pairs.has_rails_here(_context(cluster))
    each = request.fabric_rate / 8 if apart and len(request.hcas) == cluster.ranks else 0.0
    domains = [node.domain_name() for node in cluster.nodes]
    return pairs.judge_pairs_matrix(_context(cluster), matrix, hosts, domains, each, apart=apart)


class Modelled(machine.Machine):
    """A machine whose files are a table and whose programs are functions."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def line(self, name: str) -> str:
        return self.node.files().get(name, "")

    def found(self, pattern: str) -> list[str]:
        want = pattern.strip("/").split("/")
        have = {"/" + "/".join(path.strip("/").split("/")[: len(want)]) for path in self.node.files()
                if path.count("/") >= len(want)}  # fmt: skip
        return sorted(path for path in have
                      if all(map(fnmatch.fnmatchcase, path.strip("/").split("/"), want)))  # fmt: skip

    def exists(self, name: str) -> bool:
        return name in self.node.files() or bool(self.found(name))

    def said(self, argv: list[str], seconds: float = 60.0) -> str:
        return self.node.said(argv)

    def opens(self, name: str) -> bool:
        return name in self.node.files()

    def kernel_log(self, seconds: float) -> list[str]:
        return self.node.kernel_log()
