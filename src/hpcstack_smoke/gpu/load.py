"""What nvidia-smi says of a GPU while it works: at rest neither a link that trained low shows, nor
a slowdown.
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
HARD = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
WARM_UP_S = 1.0


def rows_now() -> list[dict[str, str]]:
    """A row a GPU of what is looked at under load."""
    rows = nvidia.query_gpus(FIELDS)
    if not any(name in row for row in rows for name in nvidia.THROTTLE):
        older = nvidia.query_gpus(("index", *nvidia.THROTTLE_BEFORE_535))
        for row, other in zip(rows, older):
            row |= {
                f"clocks_event_reasons.{name.rpartition('.')[2]}": value
                for name, value in other.items()
            }
    return rows


def sample_load(work: Callable[[], Any], seconds: float) -> list[list[dict[str, str]]]:
    """What nvidia-smi says while WORK is repeated for SECONDS: once after a second, once near the
    end.
    """
    found: list[list[dict[str, str]]] = []
    stop = time.monotonic() + seconds

    def look() -> None:
        time.sleep(min(WARM_UP_S, seconds / 3))
        found.append(rows_now())
        while (left := stop - time.monotonic()) > 0:
            time.sleep(min(left, max(left - 0.7, 0.1)))
            if stop - time.monotonic() > 0.2:
                found.append(rows_now())

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    while time.monotonic() < stop or not found:
        work()
        if time.monotonic() > stop + 60:
            break
    watcher.join(60)
    return found


def find_own_row(context: Context, rows: list[dict[str, str]]) -> dict[str, str]:
    """The row of this rank's GPU, by its PCI address where torch knows it; empty where it cannot be
    told.
    """
    import torch

    properties = torch.cuda.get_device_properties(context.device)
    uuid = str(getattr(properties, "uuid", "")).lower()
    if found := [
        row for row in rows if uuid and row.get("uuid", "").lower().removeprefix("gpu-") == uuid
    ]:
        return found[0]
    if want := address_of(properties):
        return next((row for row in rows if row.get("pci.bus_id", "").lower().endswith(want)), {})
    return rows[context.local_rank] if len(rows) == context.per_node else {}


def address_of(properties: Any) -> str:
    """0000:18:00.0 of a GPU, as /sys has it; empty where this torch does not know."""
    bus = getattr(properties, "pci_bus_id", None)
    if bus is None:
        return ""
    return f"{getattr(properties, 'pci_domain_id', 0):04x}:{bus:02x}:{getattr(properties, 'pci_device_id', 0):02x}.0"


@contextlib.contextmanager
def run_near_gpu(context: Context) -> Iterator[None]:
    """On the cores near this rank's GPU, as far as the kernel says and the step has them: pinned
    memory comes to lie there. Afterwards as before.
    """
    import torch

    from hpcstack_smoke.node import machine

    before = os.sched_getaffinity(0)
    text = machine.HERE.line(
        f"/sys/bus/pci/devices/{address_of(torch.cuda.get_device_properties(context.device))}/local_cpulist"
    )
    cores = {
        core
        for part in text.split(",")
        if (span := re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip()))
        for core in range(int(span[1]), int(span[2] or span[1]) + 1)
    } & before
    try:
        if cores:
            os.sched_setaffinity(0, cores)
        yield
    finally:
        os.sched_setaffinity(0, before)


def judge_slowdown(rows: list[dict[str, str]]) -> tuple[list[str], list[str]]:
    """(slowdowns by hardware, by software for heat) in the samples of one GPU; a power cap is as it
    should be.
    """
    active = {
        name.rpartition(".")[2]
        for row in rows
        for name in nvidia.THROTTLE
        if row.get(name) == "Active"
    }
    return sorted(active & set(HARD)), sorted(active - set(HARD))


def summarise_samples(rows: list[dict[str, str]]) -> dict[str, float]:
    """Clock, power and temperature of one GPU's samples: the lowest clock, else the highest."""
    out: dict[str, float] = {}
    for field, name, pick in (
        ("clocks.sm", "sm_MHz", min),
        ("power.draw", "power_W", max),
        ("temperature.gpu", "temperature_C", max),
    ):
        values = [
            value for row in rows if (value := nvidia.parse_number(row.get(field, ""))) is not None
        ]
        if values:
            out[name] = pick(values)
    return out
