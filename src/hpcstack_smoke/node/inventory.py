"""What a node is made of: the part of a baseline's key that hardware gives, and what nodes must
have alike.
"""

from __future__ import annotations

import os
import platform
from typing import Any

from hpcstack_smoke.node import machine, nvidia, nvlink, sysfs
from hpcstack_smoke.node.topology import nearest_hcas


def make_inventory(request: Any = None) -> dict[str, Any]:
    """{gpus, gpu, driver, ports, rate_gbps, cpus, memory_gb, kernel, arch, ...} of this machine,
    what there is.

    `domain` is the NVLink domain of its GPUs where that spans nodes; `alike` holds what other nodes
    should have too.
    """
    rows = nvidia.query_gpus(nvidia.IDENTITY)
    whole = bool(request and request.gpus and request.gpus >= request.node_gpus > 0)
    ports = sysfs.list_ports()
    if request is not None:
        ports = sysfs.of_fabric(ports, request.fabric, tuple(request.hcas))
    active = [port for port in ports if port.active]
    if request is not None and request.fabric == "ethernet":
        active = []
    out: dict[str, Any] = {
        "gpus": len(rows),
        "gpu": rows[0].get("name", "") if rows else "",
        "driver": rows[0].get("driver_version", "") if rows else "",
        "ports": len(active),
        "rate_gbps": max((port.rate for port in active), default=0.0),
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "arch": platform.machine(),
        "domain": "/".join(next(iter(nvlink.read_domains().values()), ())),
        "alike": list_alike(active, whole=whole),
    }
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    out["memory_gb"] = round(pages * size / 1e9, 1)
    return out


def list_alike(active: list[sysfs.Port], *, whole: bool) -> dict[str, str]:
    """{what: value} of what all nodes of a kind should have: firmware, active ports, MTU, GPUs.

    Where the step has the WHOLE node, their PCIe addresses too; else Slurm may have given it other
    ones elsewhere.
    """
    rows = nvidia.query_gpus(("pci.bus_id", *nvidia.FIRMWARE))
    mtus = sorted({port.mtu for port in active if port.ethernet and port.mtu})
    bios = machine.HERE.line("/sys/class/dmi/id/bios_version")
    found = {
        "GPUs": str(len(rows)) if rows else "",
        "PCIe addresses": ",".join(row.get("pci.bus_id", "?") for row in rows) if whole else "",
        "HCAs near GPUs": nearest_hcas(nvidia.nvidia_smi(["topo", "-m"])) if whole and rows else "",
        "VBIOS": ",".join(sorted({row.get("vbios_version", "?") for row in rows})),
        "ports": ",".join(
            [
                *(port.name for port in active),
                *(name for name, up in sysfs.read_cassini().items() if up),
            ]
        ),
        "port rates": ",".join(sorted({f"{port.rate:g}" for port in active})),
        "HCA firmware": ",".join(sorted({port.firmware for port in active} - {""})),
        "MTU": ",".join(map(str, mtus)),
        "BIOS": "" if bios.startswith("?") else bios,
        "kernel": platform.release(),
    }
    return {name: value for name, value in found.items() if value}
