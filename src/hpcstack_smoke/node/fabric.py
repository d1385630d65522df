"""Checks of a node's InfiniBand and RoCE: ports, rates, GIDs, memlock, GPUDirect, error counters, tools."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from typing import Any

from hpcstack_smoke.node import sysfs
from hpcstack_smoke.node.host import STACK_FILE
from hpcstack_smoke.result import FAIL, PASS, WARN, Result, Skip, judge

PEERMEM = (
    "/sys/kernel/mm/memory_peers/nv_mem/version", "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
    "/sys/module/nvidia_peermem/version",
)  # fmt: skip
NVFS = ("/proc/driver/nvidia-fs/version", "/sys/module/nvidia_fs/version")
BEFORE: dict[str, int] = {}


def _ports() -> list[sysfs.Port]:
    found = sysfs.ports()
    if not found:
        raise Skip(f"no HCA on this node ({sysfs.HCAS} is empty)")
    return found


def hcas(request: Any) -> Result:
    """Every port with a cable is active, and one at least. What NCCL_IB_HCA leaves out is not looked at."""
    ports = sysfs.asked_for(_ports())
    rates = ", ".join(f"{port.name} {port.rate:g} Gb/s {port.layer}" for port in ports)
    unplugged = [port.name for port in ports if not port.active and port.unplugged]
    down = [port.name for port in ports if not port.active and port.name not in unplugged]
    if not any(port.active for port in ports):
        down = [port.name for port in ports]
    states = ", ".join(f"{port.name} {port.state}" for port in ports)
    remedy = f"look at {', '.join(down)}: ibstat; NCCL_IB_HCA leaves out ports that are not cabled"
    figures = {"ports": float(len(ports)), "active_ports": float(sum(port.active for port in ports))}
    if not down and unplugged:
        expected = "every port with a cable ACTIVE"
        return Result(
            WARN, rates, expected, evidence=f"no link: {', '.join(unplugged)}", remedy=remedy, figures=figures
        )
    return judge(not down, rates, "every port ACTIVE", evidence=states, remedy=remedy, figures=figures)


def rate(request: Any) -> Result:
    """All active ports have the rate that the site says, or at least the same one."""
    active = [port for port in sysfs.asked_for(_ports()) if port.active and port.rate]
    if not active:
        raise Skip("no active port says its rate")
    want = request.fabric_rate or max(port.rate for port in active)
    slow = [f"{port.name} {port.rate:g}" for port in active if port.rate < want]
    measured = f"slow: {', '.join(slow)} Gb/s" if slow else f"{len(active)} port(s) at {want:g} Gb/s"
    source = "site.yaml" if request.fabric_rate else "the fastest port of this node"
    remedy = (
        "a management port? NCCL_IB_HCA leaves it out. Else look at the cable and the switch's port: ibstat, mlxlink"
    )
    if len(slow) == len(active):
        return Result(FAIL, measured, f"{want:g} Gb/s", source, remedy=remedy)
    if slow:
        return Result(WARN, measured, f"{want:g} Gb/s", source, remedy=remedy)
    return Result(PASS, measured, f"{want:g} Gb/s", source)


def gid(request: Any) -> Result:
    """Each active RoCE port has a RoCE v2 GID that is not only link-local."""
    ethernet = [port for port in sysfs.asked_for(_ports()) if port.active and port.layer == "Ethernet"]
    if not ethernet:
        raise Skip("no active RoCE port")
    said, bad = [], []
    for port in ethernet:
        good = [index for index, (gid, kind) in sorted(sysfs.gids(port).items())
                if kind == "RoCE v2" and not gid.startswith("fe80")]  # fmt: skip
        if good:
            said.append(f"{port.name} GID {good[0]}")
        else:
            bad.append(port.name)
    measured = f"none on {', '.join(bad)}" if bad else ", ".join(said)
    return judge(not bad, measured, "a routable RoCE v2 GID on each port", "nccl: NCCL_IB_GID_INDEX",
                 remedy="give the port's interface an address; NCCL_IB_GID_INDEX picks the GID")  # fmt: skip


def memlock(request: Any) -> Result:
    """RDMA pins memory: the limit must be unlimited inside the step, inside the container."""
    if not sysfs.ports():
        raise Skip("no HCA on this node: nothing pins memory")
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    measured = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft} bytes"
    remedy = "LimitMEMLOCK=infinity for slurmd, and PropagateResourceLimitsExcept=MEMLOCK in slurm.conf"
    return judge(soft == resource.RLIM_INFINITY, measured, "unlimited", "nccl-tests #206", remedy=remedy)


def gdr(request: Any) -> Result:
    """The kernel's part of GPUDirect RDMA: nvidia-peermem, or a kernel with dma-buf, which only NCCL's log proves."""
    if not sysfs.ports() or not os.path.exists("/proc/driver/nvidia/version"):
        raise Skip("no HCA or no NVIDIA driver on this node")
    found = [path for path in PEERMEM if os.path.exists(path)]
    if found:
        return Result(PASS, found[0], "nvidia-peermem or dma-buf", "nccl #1537")
    remedy = "modprobe nvidia-peermem, or trust dma-buf if nccl.transport says GDRDMA"
    return Result(WARN, "no nvidia-peermem; dma-buf may do", "nvidia-peermem or dma-buf", "nccl #1939", remedy=remedy)


def storage(request: Any) -> Result:
    """The kernel's part of GPUDirect Storage."""
    if not os.path.exists("/proc/driver/nvidia/version"):
        raise Skip("no NVIDIA driver on this node")
    found = [path for path in NVFS if os.path.exists(path)]
    if not found:
        raise Skip("nvidia-fs is not loaded: reads go through the host's memory")
    return Result(PASS, f"nvidia-fs {sysfs.line(found[0])}")


def ib_tools(request: Any) -> Result:
    """The InfiniBand user tools that the stack promises are in the image and start."""
    path = shutil.which("ibstat") or shutil.which("ibstat", path="/usr/sbin:/sbin")
    if not path:
        if not os.path.exists(STACK_FILE):
            raise Skip("no ibstat; not an image of hpcstack, which would promise it")
        remedy = "packages: {apt: [infiniband-diags]}"
        return Result(FAIL, "no ibstat in the image", "ibstat", "the recipe", remedy=remedy)
    done = subprocess.run([path, "-V"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20, check=False)
    said = done.stdout.decode(errors="replace").strip().splitlines()
    good, evidence = done.returncode == 0, f"rc {done.returncode}"
    return judge(good, said[0] if said else path, "ibstat -V ends with 0", evidence=evidence)


def counters_row(request: Any, host: str) -> dict[str, Any] | None:
    """The row of `fabric.counters`: what the ports' error counters gained while the suite ran."""
    from hpcstack_smoke.result import run

    if not request.checks("after"):
        return None
    return run("fabric.counters", lambda: gained(BEFORE, sysfs.counters()), host)


HARD = ("link_downed", "link_error_recovery", "local_link_integrity_errors", "excessive_buffer_overrun_errors")


def gained(before: dict[str, int], after: dict[str, int]) -> Result:
    """A link that went down or recovered during the run is a FAIL; other counters move on healthy fabrics too: WARN."""
    if not after:
        raise Skip("no HCA with error counters on this node")
    if not before:
        raise Skip("the counters were not read before the run")
    up = {name: after[name] - before[name] for name in sorted(after) if name in before and after[name] > before[name]}
    hard = [name for name in up if name.rpartition("/")[2] in HARD]
    measured = ", ".join(f"{name} +{count}" for name, count in up.items()) or f"{len(after)} counters stood still"
    expected, source = "no link error counted during the run", "sysfs-class-infiniband"
    remedy = "look at that port's cable and transceiver: mlxlink, ibqueryerrors"
    if hard:
        return Result(FAIL, measured, expected, source, remedy=remedy)
    return Result(WARN if up else PASS, measured, expected, source, remedy=remedy if up else "")
