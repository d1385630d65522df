"""Ask nvidia-smi about a GPU while it works.

At rest neither a PCIe link that trained low nor a slowdown can be seen.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from typing import TYPE_CHECKING, Any

from hpcstack_smoke.node import nvidia

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hpcstack_smoke.context import Context

FIELDS = ("index", "uuid", "pci.bus_id", *nvidia.PCIE, *nvidia.UNDER_LOAD, *nvidia.THROTTLE)
# Slowdowns by hardware; the others of nvidia.REASONS are by software
HARD = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
WARM_UP_S = 1.0


def query_rows() -> list[dict[str, str]]:
    """Return what nvidia-smi says of FIELDS now: one {field: value} a GPU.

    Drivers before 535 have other names for slowdowns; here they have the new ones.
    """
    rows = nvidia.query_gpus(FIELDS)
    if not any(name in row for row in rows for name in nvidia.THROTTLE):
        older = nvidia.query_gpus(("index", *nvidia.THROTTLE_BEFORE_535))
        for row, other in zip(rows, older):
            for name, value in other.items():
                row[f"clocks_event_reasons.{name.rpartition('.')[2]}"] = value
    return rows


def sample_load(work: Callable[[], Any], seconds: float) -> list[list[dict[str, str]]]:
    """Repeat WORK for SECONDS. Return what nvidia-smi said meanwhile, as `query_rows` does each time.

    It is asked after a second, and again near the end. WORK goes on until there is one answer, at
    most a minute longer.
    """
    found: list[list[dict[str, str]]] = []
    stop = time.monotonic() + seconds

    def look() -> None:
        time.sleep(min(WARM_UP_S, seconds / 3))
        found.append(query_rows())
        # Once more about 0.7 s before the end: later, the answer might come when WORK has stopped
        while (left := stop - time.monotonic()) > 0:
            time.sleep(min(left, max(left - 0.7, 0.1)))
            if stop - time.monotonic() > 0.2:
                found.append(query_rows())

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    while time.monotonic() < stop or not found:
        work()
        if time.monotonic() > stop + 60:
            break
    watcher.join(60)
    return found


def find_own_row(context: Context, rows: list[dict[str, str]]) -> dict[str, str]:
    """Return the one of ROWS that is of this rank's GPU, empty where it cannot be identified.

    The GPU's UUID or PCI address identifies it, as far as torch knows them; else the local rank,
    where there are as many rows as ranks of the node.
    """
    import torch

    properties = torch.cuda.get_device_properties(context.device)
    uuid = str(getattr(properties, "uuid", "")).lower()
    for row in rows:
        # torch gives the UUID without `GPU-`
        if uuid and row.get("uuid", "").lower().removeprefix("gpu-") == uuid:
            return row
    address = read_address(properties)
    if address:
        # nvidia-smi writes the PCI domain with more digits
        for row in rows:
            if row.get("pci.bus_id", "").lower().endswith(address):
                return row
        return {}
    return rows[context.local_rank] if len(rows) == context.per_node else {}


def read_address(properties: Any) -> str:
    """Return the PCI address in torch's PROPERTIES of a GPU, as /sys writes it: 0000:18:00.0.

    Empty where this torch does not know it.
    """
    bus = getattr(properties, "pci_bus_id", None)
    if bus is None:
        return ""
    domain = getattr(properties, "pci_domain_id", 0)
    device = getattr(properties, "pci_device_id", 0)
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


@contextlib.contextmanager
def run_near_gpu(context: Context) -> Iterator[None]:
    """Run the body of `with` on the cores near this rank's GPU, so that pinned memory lies near it.

    They are the cores that the kernel calls local and the step has; where there are none, nothing
    changes. The affinity of before is restored afterwards.
    """
    import torch

    from hpcstack_smoke.node import machine

    before = os.sched_getaffinity(0)
    address = read_address(torch.cuda.get_device_properties(context.device))
    listed = machine.HERE.line(f"/sys/bus/pci/devices/{address}/local_cpulist")
    cores = _parse_cores(listed) & before
    try:
        if cores:
            os.sched_setaffinity(0, cores)
        yield
    finally:
        os.sched_setaffinity(0, before)


def _parse_cores(listed: str) -> set[int]:
    """Return the cores in LISTED, the kernel's form: `0-55,112-167`. Anything else is left out."""
    cores: set[int] = set()
    for part in listed.split(","):
        span = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if span:
            cores.update(range(int(span[1]), int(span[2] or span[1]) + 1))
    return cores


def judge_slowdown(rows: list[dict[str, str]]) -> tuple[list[str], list[str]]:
    """Return (slowdowns by hardware, slowdowns by software for heat) in ROWS of one GPU.

    A power cap is none of them: a GPU at its limit works as it should.
    """
    active = set()
    for row in rows:
        for name in nvidia.THROTTLE:
            if row.get(name) == "Active":
                active.add(name.rpartition(".")[2])
    return sorted(active & set(HARD)), sorted(active - set(HARD))


def summarise_samples(rows: list[dict[str, str]]) -> dict[str, float]:
    """Return the lowest clock, and the highest power and temperature, in ROWS of one GPU.

    A figure that no row has is left out.
    """
    out: dict[str, float] = {}
    for field, name, pick in (
        ("clocks.sm", "sm_MHz", min),
        ("power.draw", "power_W", max),
        ("temperature.gpu", "temperature_C", max),
    ):
        numbers = [nvidia.parse_number(row.get(field, "")) for row in rows]
        values = [number for number in numbers if number is not None]
        if values:
            out[name] = pick(values)
    return out
