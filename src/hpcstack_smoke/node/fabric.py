"""Checks of a node's fabric: ports, rates, GIDs, MTU, memlock, GPUDirect, error counters, tools.

What a site promises (`request.fabric`, `hcas`, `fabric_rate`) and is not there is a FAIL; what it
does not promise is judged by the node itself, and by the other nodes (node.alike).
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from typing import Any

from hpcstack_smoke.node import machine, sysfs
from hpcstack_smoke.node.host import STACK_FILE
from hpcstack_smoke.result import FAIL, PASS, WARN, Result, Skip, judge_result

PEERMEM = (
    "/sys/kernel/mm/memory_peers/nv_mem/version", "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
    "/sys/module/nvidia_peermem/version",
)  # fmt: skip
NVFS = ("/proc/driver/nvidia-fs/version", "/sys/module/nvidia_fs/version")
DRIVER = "/proc/driver/nvidia/version"
WITHOUT_PORTS = ("ethernet", "slingshot")
BEFORE: dict[str, int] = {}
SITE = "site.yaml"


def _ports(request: Any) -> list[sysfs.Port]:
    """The ports of the node's fabric. Skip where it has none and none is promised."""
    found = sysfs.of_fabric(sysfs.list_ports(), request.fabric, tuple(request.hcas))
    if not found:
        raise Skip(f"no HCA on this node ({sysfs.HCAS} is empty)")
    return found


def hcas(request: Any) -> Result:
    """Every port that the site promises is active; without a promise every port with a cable, and
    one at least.
    """
    if request.fabric == "slingshot":
        return _cassini(request)
    if missing := _missing(request):
        return missing
    ports = _ports(request)
    if _only_cards(request, ports):
        raise Skip("Ethernet ports that nobody calls a fabric")
    rates = ", ".join(f"{port.name} {port.rate:g} Gb/s {port.layer}" for port in ports)
    promised = bool(request.hcas)
    unplugged = [port.name for port in ports if not port.active and port.unplugged and not promised]
    down = [port.name for port in ports if not port.active and port.name not in unplugged]
    if not any(port.active for port in ports):
        down = [port.name for port in ports]
    states = ", ".join(
        f"{port.name} {port.state}" + (f" ({port.physical})" if port.unplugged else "")
        for port in ports
    )
    remedy = f"look at {', '.join(down or unplugged)}: ibstat, the cable, the switch's port"
    remedy += "" if promised else "; NCCL_IB_HCA leaves out ports that are not cabled"
    figures = {
        "ports": float(len(ports)),
        "active_ports": float(sum(port.active for port in ports)),
    }
    expected = f"{', '.join(request.hcas)} ACTIVE" if promised else "every port with a cable ACTIVE"
    source = SITE if promised else ""
    if (
        not down and unplugged
    ):  # perhaps never cabled: node.alike sees whether the other nodes have it
        return Result(
            WARN, rates, expected, source, f"no link: {', '.join(unplugged)}", remedy, figures
        )
    measured = f"down: {', '.join(down)}; {rates}" if down else rates
    return judge_result(not down, measured, expected, source, states, remedy, figures=figures)


def _missing(request: Any) -> Result | None:
    """The FAIL of a node that has not the devices that it should have."""
    found = {port.hca for port in sysfs.list_ports()} | {port.name for port in sysfs.list_ports()}
    gone = [name for name in request.hcas if name not in found]
    bare = sysfs.adapters_without_driver()
    remedy = "modprobe mlx5_ib (or the adapter's own driver: efa, irdma, bnxt_re); dmesg; lspci"
    if gone:
        said = f"not here: {', '.join(gone)}" + (
            f"; adapters without a driver: {', '.join(bare)}" if bare else ""
        )
        return Result(FAIL, said, ", ".join(request.hcas), SITE, remedy=remedy)
    if bare:
        said = f"adapters without a driver: {', '.join(bare)}"
        return Result(FAIL, said, f"devices in {sysfs.HCAS}", "lspci", remedy=remedy)
    if request.fabric and request.fabric not in WITHOUT_PORTS and not found:
        return Result(
            FAIL, "no HCA on this node", f"a fabric of kind {request.fabric}", SITE, remedy=remedy
        )
    return None


def _only_cards(request: Any, ports: list[sysfs.Port]) -> bool:
    """Whether PORTS are network cards and no fabric, by the site's word or for all that one knows."""
    return request.fabric in WITHOUT_PORTS or sysfs.only_cards(
        ports, request.fabric, tuple(request.hcas)
    )


def _cassini(request: Any) -> Result:
    """Slingshot's adapters are no verbs devices: /sys/class/cxi holds them, and their interfaces
    say who is up.
    """
    found = sysfs.read_cassini()
    down = [name for name, up in found.items() if not up] + [
        name for name in request.hcas if name not in found
    ]
    measured = (
        f"down or not here: {', '.join(down)}"
        if down
        else ", ".join(found) or f"{sysfs.CASSINI} is empty"
    )
    figures = {"active_ports": float(sum(found.values()))}
    return judge_result(
        bool(found) and not down,
        measured,
        "Slingshot's adapters, up",
        SITE,
        figures=figures,
        remedy="modprobe cxi_ss1; systemctl status cxi_rh; the cable and the switch's port",
    )


def rate(request: Any) -> Result:
    """All active ports have the rate that the site says, or at least the same one."""
    active = [port for port in _ports(request) if port.active and port.rate]
    if not active:
        raise Skip("no active port says its rate")
    want = request.fabric_rate or max(port.rate for port in active)
    if not (
        request.hcas or request.fabric_rate
    ):  # a slower Ethernet port is another network's card
        active = [port for port in active if not port.ethernet or port.rate == want]
    slow = [f"{port.name} {port.rate:g}" for port in active if port.rate < want]
    measured = (
        f"slow: {', '.join(slow)} Gb/s" if slow else f"{len(active)} port(s) at {want:g} Gb/s"
    )
    source = SITE if request.fabric_rate else "the fastest port of this node"
    remedy = "look at the cable and the switch's port: ibstat, mlxlink"
    if not request.hcas:
        remedy = (
            f"a management port? `hcas` in site.yaml or NCCL_IB_HCA leaves it out. Else {remedy}"
        )
    figures = {"rate_Gb_per_s": min(port.rate for port in active)}
    if slow and (len(slow) == len(active) or (request.hcas and request.fabric_rate)):
        return Result(FAIL, measured, f"{want:g} Gb/s", source, remedy=remedy, figures=figures)
    if slow:
        return Result(WARN, measured, f"{want:g} Gb/s", source, remedy=remedy, figures=figures)
    return Result(PASS, measured, f"{want:g} Gb/s", source, figures=figures)


def gid(request: Any) -> Result:
    """Each RoCE port that is promised has a RoCE v2 GID that is not only link-local; one of the
    others at least.
    """
    ethernet = [port for port in _ports(request) if port.active and port.ethernet]
    if not ethernet:
        raise Skip("no active RoCE port of this node's fabric")
    said, bad = [], []
    for port in ethernet:
        good = [
            index
            for index, (gid, kind) in sorted(sysfs.read_gids(port).items())
            if kind == "RoCE v2" and not gid.startswith("fe80")
        ]
        if good:
            said.append(f"{port.name} GID {good[0]}")
        else:
            bad.append(port.name)
    expected, source = "a routable RoCE v2 GID on each port", "nccl: NCCL_IB_GID_INDEX"
    remedy = "give the port's interface an address; NCCL_IB_GID_INDEX picks the GID"
    evidence = f"none on {', '.join(bad)}" if bad else ""
    if bad and (request.hcas or (request.fabric == "roce" and not said)):
        return Result(FAIL, evidence, expected, source, remedy=remedy)
    if not said and request.fabric == "ethernet":
        raise Skip("the site calls its network Ethernet")
    if not said:
        return Result(
            WARN,
            evidence,
            expected,
            source,
            remedy=f"{remedy}; or say `fabric: {{kind: ethernet}}`",
        )
    return Result(PASS, ", ".join(said), "a routable RoCE v2 GID", source, evidence)


def mtu(request: Any) -> Result:
    """The interfaces of RoCE ports have one MTU: with another one large messages stall.

    Other nodes: node.alike.
    """
    found = [port for port in _ports(request) if port.active and port.ethernet and port.mtu]
    if not found or request.fabric == "ethernet":
        raise Skip("no active RoCE port of a fabric whose interface says its MTU")
    rate = max(
        port.rate for port in found
    )  # slower ones, which nobody promised, are other networks' cards
    found = [port for port in found if port.rate == rate or request.hcas]
    most = max(port.mtu for port in found)
    odd = [f"{port.name} {port.mtu}" for port in found if port.mtu != most]
    measured = ", ".join(odd) or f"{most} on {len(found)} port(s)"
    return judge_result(
        not odd,
        measured,
        f"{most} on each",
        "the node's other ports",
        figures={"mtu": float(most)},
        remedy="ip link set DEV mtu; the switch's ports must allow it",
    )


def memlock(request: Any) -> Result:
    """RDMA pins memory: the limit must be unlimited inside the step, inside the container."""
    ports = sysfs.of_fabric(sysfs.list_ports(), request.fabric, tuple(request.hcas))
    if not ports or _only_cards(request, ports):
        raise Skip("no HCA of a fabric on this node: nothing pins memory")
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    measured = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft} bytes"
    remedy = (
        "LimitMEMLOCK=infinity for slurmd, and PropagateResourceLimitsExcept=MEMLOCK in slurm.conf"
    )
    return judge_result(
        soft == resource.RLIM_INFINITY, measured, "unlimited", "nccl-tests #206", remedy=remedy
    )


def gdr(request: Any) -> Result:
    """The kernel's part of GPUDirect RDMA: nvidia-peermem, or dma-buf of the open driver, which
    NCCL's log proves.
    """
    ports = sysfs.of_fabric(sysfs.list_ports(), request.fabric, tuple(request.hcas))
    if not ports or not machine.HERE.exists(DRIVER):
        raise Skip("no HCA or no NVIDIA driver on this node")
    if _only_cards(request, ports):
        raise Skip("Ethernet ports that nobody calls a fabric")
    found = [path for path in PEERMEM if machine.HERE.exists(path)]
    expected = "nvidia-peermem, or dma-buf"
    if found:
        return Result(PASS, found[0], expected, "nccl #1537")
    if "Open Kernel Module" in machine.HERE.line(DRIVER):
        return Result(
            PASS,
            "dma-buf: the driver is the open kernel module",
            expected,
            "nccl #1939",
            "nccl.transport says whether NCCL uses it",
        )
    remedy = "modprobe nvidia-peermem, or install the open kernel module of the driver"
    return Result(
        WARN,
        "no nvidia-peermem, and a driver without dma-buf",
        expected,
        "nccl #1939",
        remedy=remedy,
    )


def storage(request: Any) -> Result:
    """The kernel's part of GPUDirect Storage."""
    if not machine.HERE.exists(DRIVER):
        raise Skip("no NVIDIA driver on this node")
    found = [path for path in NVFS if machine.HERE.exists(path)]
    if not found:
        raise Skip("nvidia-fs is not loaded: reads go through the host's memory")
    return Result(PASS, f"nvidia-fs {sysfs.read_line(found[0])}")


def ib_tools(request: Any) -> Result:
    """The InfiniBand user tools that the stack promises are in the image and start."""
    path = shutil.which("ibstat") or shutil.which("ibstat", path="/usr/sbin:/sbin")
    if not path:
        if not os.path.exists(STACK_FILE):
            raise Skip("no ibstat; not an image of hpcstack, which would promise it")
        remedy = "packages: {apt: [infiniband-diags]}"
        return Result(FAIL, "no ibstat in the image", "ibstat", "the recipe", remedy=remedy)
    done = subprocess.run(
        [path, "-V"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20, check=False
    )
    said = done.stdout.decode(errors="replace").strip().splitlines()
    good, evidence = done.returncode == 0, f"rc {done.returncode}"
    return judge_result(good, said[0] if said else path, "ibstat -V ends with 0", evidence=evidence)


SOFT_MAX = 100
HARD = (
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)


def gained(request: Any) -> Result:
    """What the ports' error counters gained while the suite ran."""
    ports = sysfs.of_fabric(sysfs.list_ports(), request.fabric, tuple(request.hcas))
    return judge_port_gains(BEFORE, sysfs.read_error_counters(ports))


def judge_port_gains(before: dict[str, int], after: dict[str, int]) -> Result:
    """A link that went down or recovered during the run is a FAIL; many of other errors, which
    healthy fabrics count too, a WARN.
    """
    if not after:
        raise Skip("no HCA with error counters on this node")
    if not before:
        raise Skip("the counters were not read before the run")
    up = {
        name: after[name] - before[name]
        for name in sorted(after)
        if name in before and after[name] > before[name]
    }
    hard = [name for name in up if name.rpartition("/")[2] in HARD]
    many = hard + [name for name, count in up.items() if count > SOFT_MAX and name not in hard]
    evidence = ", ".join(f"{name} +{count}" for name, count in up.items())[:300]
    measured = (
        ", ".join(f"{name} +{up[name]}" for name in many)
        or f"{len(after)} counters, none of which moved much"
    )
    expected, source = "no link error counted during the run", "sysfs-class-infiniband"
    remedy = "look at that port's cable and transceiver: mlxlink, ibqueryerrors"
    if hard:
        return Result(FAIL, measured, expected, source, evidence, remedy)
    return Result(
        WARN if many else PASS, measured, expected, source, evidence, remedy if many else ""
    )
