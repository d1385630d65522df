"""What a node is made of: the part of a baseline's key that hardware gives."""

from __future__ import annotations

import os
import platform
from typing import Any

from hpcstack_smoke.node import nvidia, sysfs


def inventory() -> dict[str, Any]:
    """{gpus, gpu, driver, ports, rate_gbps, cpus, memory_gb, kernel, arch} of this machine, what there is."""
    rows = nvidia.query(nvidia.IDENTITY)
    active = sysfs.active_ports()
    out: dict[str, Any] = {
        "gpus": len(rows), "gpu": rows[0].get("name", "") if rows else "",
        "driver": rows[0].get("driver_version", "") if rows else "", "ports": len(active),
        "rate_gbps": max((port.rate for port in active), default=0.0), "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(), "arch": platform.machine(),
    }  # fmt: skip
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    out["memory_gb"] = round(pages * size / 1e9, 1)
    return out
