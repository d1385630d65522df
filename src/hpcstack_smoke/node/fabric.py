"""Check a node's fabric: ports, rates, GIDs, MTU, memlock, GPUDirect, error counters and tools.

A port or rate that the site promises (`request.fabric`, `hcas`, `fabric_rate`) and the node lacks
is a FAIL. What the site does not promise is held against the node's other ports here, and against
the other nodes in node.alike.
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

# Any one of these files shows that nvidia-peermem (or nv_peer_mem before it) is loaded
PEERMEM = (
    "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
    "/sys/module/nvidia_peermem/version",
)
# The same of EFA's own installer (ucx #10704), and what EFA's driver says of itself: 1 where
# the GPU's memory can be registered (awslabs/libfabric-ci-scripts #176)
EFA_PEERMEM = "/sys/module/efa_nv_peermem/version"
EFA_GDR = "/sys/class/infiniband/*/gdr"
NVFS = ("/proc/driver/nvidia-fs/version", "/sys/module/nvidia_fs/version")
DRIVER = "/proc/driver/nvidia/version"
# Kinds of fabric that need no port in /sys/class/infiniband
WITHOUT_PORTS = ("ethernet", "slingshot")
# The ports' error counters before the run; the node's agent fills it in
BEFORE: dict[str, int] = {}
# What a Result names as its source where the expectation comes from the site's configuration
SITE = "site.yaml"


def _require_ports(request: Any) -> list[sysfs.Port]:
    """Return the ports of the node's fabric. Raise Skip where there are none.

    A port that the site promises and the node lacks is reported by the check fabric.hcas.
    """
    found = sysfs.select_fabric_ports(sysfs.list_ports(), request.fabric, tuple(request.hcas))
    if not found:
        raise Skip(f"no HCA on this node ({sysfs.HCAS} is empty)")
    return found


def check_fabric_hcas(request: Any) -> Result:
    """Check that every port that the site promises is active.

    Without a promise, every port with a cable must be active, and at least one port in all.
    """
    if request.fabric == "slingshot":
        return _check_cassini(request)
    missing = _fail_missing_devices(request)
    if missing:
        return missing

    ports = _require_ports(request)
    if _are_only_cards(request, ports):
        raise Skip("only Ethernet ports, which site.yaml does not declare as an RDMA fabric")

    promised = bool(request.hcas)
    unplugged = [port.name for port in ports if not port.active and port.unplugged and not promised]
    down = [port.name for port in ports if not port.active and port.name not in unplugged]
    if not any(port.active for port in ports):
        # Without one active port, a missing cable is no excuse
        down = [port.name for port in ports]

    rates = ", ".join(f"{port.name} {port.rate:g} Gb/s {port.layer}" for port in ports)
    states = ", ".join(_describe_state(port) for port in ports)
    figures = {
        "ports": float(len(ports)),
        "active_ports": float(sum(port.active for port in ports)),
    }
    expected = "every port with a cable ACTIVE"
    source = ""
    remedy = f"check {', '.join(down or unplugged)}: ibstat, the cable, the switch port"
    if promised:
        expected = f"{', '.join(request.hcas)} ACTIVE"
        source = SITE
    else:
        remedy += "; NCCL_IB_HCA can exclude ports that are not cabled"

    if unplugged and not down:
        # The ports may never have been cabled: node.alike sees whether other nodes use theirs
        no_link = f"no link: {', '.join(unplugged)}"
        return Result(WARN, rates, expected, source, no_link, remedy, figures)
    measured = rates
    if down:
        measured = f"down: {', '.join(down)}; {rates}"
    return judge_result(not down, measured, expected, source, states, remedy, figures=figures)


def _describe_state(port: sysfs.Port) -> str:
    """Return PORT's name and state, and its physical state where it has no link."""
    if port.unplugged:
        return f"{port.name} {port.state} ({port.physical})"
    return f"{port.name} {port.state or 'in a state that the kernel does not say'}"


def _fail_missing_devices(request: Any) -> Result | None:
    """Return a FAIL where the node lacks a device that it should have, else None.

    It should have the HCAs that the site names, a device for each adapter that PCI lists, and at
    least one HCA where the site's kind of fabric has RDMA ports.
    """
    ports = sysfs.list_ports()
    found = {port.hca for port in ports} | {port.name for port in ports}
    gone = [name for name in request.hcas if name not in found]
    bare = sysfs.find_adapters_without_driver()
    remedy = (
        "load the adapter's driver (modprobe mlx5_ib, or efa, irdma, bnxt_re), then check dmesg "
        "and lspci"
    )

    if gone:
        measured = f"missing: {', '.join(gone)}"
        if bare:
            measured += f"; adapters without a driver: {', '.join(bare)}"
        return Result(FAIL, measured, ", ".join(request.hcas), SITE, remedy=remedy)
    if bare:
        measured = f"adapters without a driver: {', '.join(bare)}"
        return Result(FAIL, measured, f"devices in {sysfs.HCAS}", "lspci", remedy=remedy)
    if request.fabric and request.fabric not in WITHOUT_PORTS and not found:
        expected = f"a fabric of kind {request.fabric}"
        return Result(FAIL, "no HCA on this node", expected, SITE, remedy=remedy)
    return None


def _are_only_cards(request: Any, ports: list[sysfs.Port]) -> bool:
    """Return whether PORTS are plain network cards rather than an RDMA fabric.

    The site says so by its kind of fabric; a site that says nothing leaves it to sysfs.are_only_cards.
    """
    if request.fabric in WITHOUT_PORTS:
        return True
    return sysfs.are_only_cards(ports, request.fabric, tuple(request.hcas))


def _check_cassini(request: Any) -> Result:
    """Check that Slingshot's adapters are there and up.

    They are no verbs devices: /sys/class/cxi lists them, and their network interfaces say whether
    they are up.
    """
    found = sysfs.read_cassini()
    down = [name for name, up in found.items() if not up]
    down += [name for name in request.hcas if name not in found]

    measured = ", ".join(found) or f"{sysfs.CASSINI} is empty"
    if down:
        measured = f"down or missing: {', '.join(down)}"
    figures = {"active_ports": float(sum(found.values()))}
    return judge_result(
        bool(found) and not down,
        measured,
        "all Slingshot adapters up",
        SITE,
        figures=figures,
        remedy="modprobe cxi_ss1; systemctl status cxi_rh; check the cable and the switch port",
    )


def check_fabric_rate(request: Any) -> Result:
    """Check that all active ports run at the site's rate or, without one, at the same rate.

    A slow port is a FAIL where all are slow, or where the site names both ports and rate. Else it
    may be a management port, and is a WARN.
    """
    active = [port for port in _require_ports(request) if port.active and port.rate]
    if not active:
        raise Skip("no active port reports its rate")

    want = request.fabric_rate or max(port.rate for port in active)
    if not request.hcas and not request.fabric_rate:
        # A slower Ethernet port is a card of another network
        active = [port for port in active if not port.ethernet or port.rate == want]
    slow = [f"{port.name} {port.rate:g}" for port in active if port.rate < want]

    measured = f"{len(active)} port(s) at {want:g} Gb/s"
    if slow:
        measured = f"slow: {', '.join(slow)} Gb/s"
    expected = f"{want:g} Gb/s"
    source = SITE if request.fabric_rate else "the fastest port of this node"
    remedy = "check the cable and the switch port: ibstat, mlxlink"
    if not request.hcas:
        remedy = (
            "if it is a management port, exclude it by `hcas` in site.yaml or by NCCL_IB_HCA; "
            f"otherwise {remedy}"
        )
    figures = {"rate_Gb_per_s": min(port.rate for port in active)}

    if not slow:
        return Result(PASS, measured, expected, source, figures=figures)
    status = WARN
    if len(slow) == len(active) or (request.hcas and request.fabric_rate):
        status = FAIL
    return Result(status, measured, expected, source, remedy=remedy, figures=figures)


def check_fabric_gid(request: Any) -> Result:
    """Check that RoCE ports have a RoCE v2 GID that is not merely link-local.

    Every port that the site promises must have one; of ports that it does not name, at least one.
    """
    ethernet = [port for port in _require_ports(request) if port.active and port.ethernet]
    if not ethernet:
        raise Skip("this node's fabric has no active RoCE port")

    chosen = []
    without = []
    for port in ethernet:
        routable = _routable_gids(port)
        if routable:
            chosen.append(f"{port.name} GID {routable[0]}")
        else:
            without.append(port.name)

    expected = "a routable RoCE v2 GID on each port"
    source = "nccl: NCCL_IB_GID_INDEX"
    remedy = "assign an address to the port's interface; NCCL_IB_GID_INDEX selects the GID"
    evidence = f"none on {', '.join(without)}" if without else ""
    if without and (request.hcas or (request.fabric == "roce" and not chosen)):
        return Result(FAIL, evidence, expected, source, remedy=remedy)
    if not chosen and request.fabric == "ethernet":
        raise Skip("site.yaml says that the fabric is plain Ethernet")
    if not chosen:
        remedy += "; if it is no fabric, set `fabric: {kind: ethernet}` in site.yaml"
        return Result(WARN, evidence, expected, source, remedy=remedy)
    return Result(PASS, ", ".join(chosen), "a routable RoCE v2 GID", source, evidence)


def _routable_gids(port: sysfs.Port) -> list[int]:
    """Return the indices of PORT's RoCE v2 GIDs that are not link-local, the lowest first."""
    out = []
    for index, (gid, kind) in sorted(sysfs.read_gids(port).items()):
        # fe80: a link-local address, which no router forwards
        if kind == "RoCE v2" and not gid.startswith("fe80"):
            out.append(index)
    return out


def check_fabric_mtu(request: Any) -> Result:
    """Check that the interfaces of the node's RoCE ports have one MTU.

    Where two ends differ, large messages stall. node.alike compares the other nodes.
    """
    found = [port for port in _require_ports(request) if port.active and port.ethernet and port.mtu]
    if not found or request.fabric == "ethernet":
        raise Skip("no active RoCE port of a fabric whose interface reports its MTU")

    # Slower ports that the site does not promise are cards of other networks
    fastest = max(port.rate for port in found)
    found = [port for port in found if port.rate == fastest or request.hcas]
    largest = max(port.mtu for port in found)
    smaller = [f"{port.name} {port.mtu}" for port in found if port.mtu != largest]
    measured = ", ".join(smaller) or f"{largest} on {len(found)} port(s)"
    return judge_result(
        not smaller,
        measured,
        f"{largest} on each port",
        "the node's other ports",
        figures={"mtu": float(largest)},
        remedy="ip link set dev DEV mtu MTU; the switch ports must allow it too",
    )


def check_fabric_memlock(request: Any) -> Result:
    """Check that memlock is unlimited inside the step and the container, as RDMA pins memory."""
    ports = sysfs.select_fabric_ports(sysfs.list_ports(), request.fabric, tuple(request.hcas))
    if not ports or _are_only_cards(request, ports):
        raise Skip("no HCA of a fabric on this node: nothing pins memory")

    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    unlimited = soft == resource.RLIM_INFINITY
    measured = "unlimited" if unlimited else f"{soft} bytes"
    remedy = (
        "set LimitMEMLOCK=infinity for slurmd, and PropagateResourceLimitsExcept=MEMLOCK in "
        "slurm.conf"
    )
    return judge_result(unlimited, measured, "unlimited", "nccl-tests #206", remedy=remedy)


def check_fabric_gdr(request: Any) -> Result:
    """Check the kernel's part of GPUDirect RDMA: nvidia-peermem, or dma-buf of the open driver.

    Whether NCCL then uses it is shown by its log alone: nccl.transport reads that.
    """
    ports = sysfs.select_fabric_ports(sysfs.list_ports(), request.fabric, tuple(request.hcas))
    if not ports or not machine.HERE.exists(DRIVER):
        raise Skip("no HCA or no NVIDIA driver on this node")
    if _are_only_cards(request, ports):
        raise Skip("only Ethernet ports, which site.yaml does not declare as an RDMA fabric")

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
            "nccl.transport shows whether NCCL uses it",
        )
    of_efa = [EFA_PEERMEM] if machine.HERE.exists(EFA_PEERMEM) else []
    of_efa += [path for path in machine.HERE.found(EFA_GDR) if machine.HERE.line(path) == "1"]
    if of_efa:
        return Result(PASS, of_efa[0], expected, "ucx #10704")
    return Result(
        WARN,
        "no nvidia-peermem, and a driver without dma-buf",
        expected,
        "nccl #1939",
        remedy="modprobe nvidia-peermem, or install the driver's open kernel module",
    )


def check_fabric_storage(request: Any) -> Result:
    """Check the kernel's part of GPUDirect Storage: the module nvidia-fs."""
    if not machine.HERE.exists(DRIVER):
        raise Skip("no NVIDIA driver on this node")
    found = [path for path in NVFS if machine.HERE.exists(path)]
    if not found:
        raise Skip("nvidia-fs is not loaded: reads go through host memory")
    return Result(PASS, f"nvidia-fs {sysfs.read_line(found[0]) or 'of an unknown version'}")


def check_fabric_tools(request: Any) -> Result:
    """Check that the InfiniBand user tools that the stack promises are in the image and start."""
    path = shutil.which("ibstat") or shutil.which("ibstat", path="/usr/sbin:/sbin")
    if not path:
        if not os.path.exists(STACK_FILE):
            raise Skip("no ibstat; only images of hpcstack promise it, and this is not one")
        remedy = "add `packages: {apt: [infiniband-diags]}` to the recipe and build again"
        return Result(FAIL, "no ibstat in the image", "ibstat", "the recipe", remedy=remedy)

    done = subprocess.run(
        [path, "-V"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20, check=False
    )
    lines = done.stdout.decode(errors="replace").strip().splitlines()
    measured = lines[0] if lines else path
    return judge_result(
        done.returncode == 0,
        measured,
        "ibstat -V exits with 0",
        evidence=f"exit status {done.returncode}",
    )


# Healthy fabrics count some errors, too: a counter that rose by no more than this is no finding
SOFT_MAX = 100
# A counter among these that rose at all during the run is a FAIL
HARD = (
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)


# A counter among these that rose at all is a WARN
STILL = (*sysfs.EFA_ERRORS, *sysfs.CASSINI_ERRORS)


def check_fabric_counters(request: Any) -> Result:
    """Judge what the ports' error counters gained while the suite ran."""
    ports = sysfs.select_fabric_ports(sysfs.list_ports(), request.fabric, tuple(request.hcas))
    return judge_port_gains(BEFORE, sysfs.read_error_counters(ports))


def judge_port_gains(before: dict[str, int], after: dict[str, int]) -> Result:
    """Judge the error counters, each {HCA:PORT/COUNTER: value}, BEFORE and AFTER the run.

    A link that went down or recovered during the run is a FAIL. Many of the errors that healthy
    fabrics count too are a WARN, as is any of those that stand still on a healthy node.
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
    soft = []
    for name, count in up.items():
        most = 0 if name.rpartition("/")[2] in STILL else SOFT_MAX
        if count > most and name not in hard:
            soft.append(name)

    evidence = ", ".join(f"{name} +{count}" for name, count in up.items())[:300]
    measured = ", ".join(f"{name} +{up[name]}" for name in [*hard, *soft])
    if not measured:
        measured = f"{len(after)} counters, none of which rose much"
    expected = "no link error counted during the run"
    source = "sysfs-class-infiniband"
    remedy = "check that port's cable and transceiver: mlxlink, ibqueryerrors"
    if hard:
        return Result(FAIL, measured, expected, source, evidence, remedy)
    if soft:
        return Result(WARN, measured, expected, source, evidence, remedy)
    return Result(PASS, measured, expected, source, evidence)
