"""Describe what a node is made of.

This is the hardware's part of a baseline's key, and what the nodes of a kind must have alike.

Tested in tests/unit/suite/test_clusters.py.
"""

from __future__ import annotations

import os
import platform
from typing import Any

from hpcstack_smoke.node import machine, nvidia, nvlink, sysfs
from hpcstack_smoke.node.topology import NO_MESH, find_nearest_hcas


def make_inventory(request: Any = None) -> dict[str, Any]:
    """Return what the node has, by name.

    The names are gpus, gpu, capability, nvlinks, nvswitch, driver, ports, rate_gbps, cpus,
    memory_gb, kernel, arch, domain and alike. `nvlinks` are those of a GPU that lead to the node's
    others, `nvswitch` is whether a switch joins them. `ports` are active ports of the fabric.
    `rate_gbps` is in Gb/s, `memory_gb` in 1e9 bytes. `domain` is the NVLink domain of the node's
    GPUs where it spans nodes. `alike` is what the other nodes should have too. Values of what the
    machine lacks are 0 or empty.
    """
    rows = nvidia.query_gpus(nvidia.IDENTITY)
    whole = bool(request and request.gpus and request.gpus >= request.node_gpus > 0)

    ports = sysfs.list_ports()
    if request is not None:
        ports = sysfs.select_fabric_ports(ports, request.fabric, tuple(request.hcas))
    active = [port for port in ports if port.active]
    if request is not None and request.fabric == "ethernet":
        # By the site's word these ports are plain network cards, and no part of a fabric
        active = []

    mesh = nvlink.read_mesh() if len(rows) > 1 else NO_MESH
    domain = next(iter(nvlink.read_domains().values()), ())
    pages, page_size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "gpus": len(rows),
        "gpu": rows[0].get("name", "") if rows else "",
        "capability": rows[0].get("compute_cap", "") if rows else "",
        "nvlinks": mesh.links,
        "nvswitch": mesh.switched,
        "driver": rows[0].get("driver_version", "") if rows else "",
        "ports": len(active),
        "rate_gbps": max((port.rate for port in active), default=0.0),
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "arch": platform.machine(),
        "domain": "/".join(domain),
        "alike": list_alike(active, whole=whole),
        "memory_gb": round(pages * page_size / 1e9, 1),
    }


def list_alike(active: list[sysfs.Port], *, whole: bool) -> dict[str, str]:
    """Return {what: value} of what all nodes of a kind should have: firmware, ports, MTU, GPUs.

    ACTIVE are the fabric's active ports. The GPUs' PCIe addresses and nearest HCAs are listed only
    where the step has the WHOLE node: else Slurm may give it other GPUs on each node.
    """
    rows = nvidia.query_gpus(("pci.bus_id", *nvidia.FIRMWARE))
    addresses = ""
    near = ""
    if whole and rows:
        addresses = ",".join(row.get("pci.bus_id", "?") for row in rows)
        near = find_nearest_hcas(nvidia.run_nvidia_smi(["topo", "-m"]))
    ports = [port.name for port in active]
    ports += [name for name, up in sysfs.read_cassini().items() if up]
    mtus = sorted({port.mtu for port in active if port.ethernet and port.mtu})

    found = {
        "GPUs": str(len(rows)) if rows else "",
        "PCIe addresses": addresses,
        "HCAs near GPUs": near,
        "VBIOS": ",".join(sorted({row.get("vbios_version", "?") for row in rows})),
        "ports": ",".join(ports),
        "port rates": ",".join(sorted({f"{port.rate:g}" for port in active})),
        "HCA firmware": ",".join(sorted({port.firmware for port in active} - {""})),
        "MTU": ",".join(map(str, mtus)),
        "BIOS": machine.HERE.line("/sys/class/dmi/id/bios_version"),
        "kernel": platform.release(),
    }
    return {name: value for name, value in found.items() if value}
