"""ib_write_bw of perftest between neighbouring nodes, where the image has it: what a port carries without NCCL.

Expected: HDR 180 and NDR 360 Gb/s, which are 90 % of the link's rate; other rates by the same share. Below is a WARN.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time

from hpcstack_smoke.node.sysfs import active_ports
from hpcstack_smoke.result import PASS, WARN, Result, Skip
from hpcstack_smoke.tasks import Task, address

SHARE = 0.9
ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s*$")


def average(text: str) -> float:
    """Gb/s of the last row of the table: bytes, iterations, peak, average, message rate; 0 where there is none."""
    found = [float(match[4]) for line in text.splitlines() if (match := ROW.match(line))]
    return found[-1] if found else 0.0


def write_bw(task: Task) -> Result:
    """The first task of each node talks to the next one's: even nodes serve, odd ones ask. The slowest pair counts."""
    ready = bool(shutil.which("ib_write_bw")) and bool(active_ports())
    others = task.all("ready", [ready, address(), task.local])
    if not all(one[0] for one in others):
        raise Skip("no ib_write_bw in the image, or no active port on a node")
    firsts = [rank for rank, one in enumerate(others) if one[2] == 0]
    if len(firsts) < 2:
        raise Skip("one node: nothing to talk to")
    place = firsts.index(task.rank) if task.rank in firsts else len(firsts)
    partner = place ^ 1
    mine = _exchanged(task, others, firsts[partner], place) if max(place, partner) < len(firsts) else None
    found = [one for one in task.all("value", mine) if one]
    value, name, rate = min(found)
    want = SHARE * rate
    status = PASS if value >= want else WARN
    remedy = "" if status == PASS else "look at the cable, the switch's port, PCIe width: mlxlink"
    measured = f"{value:.0f} Gb/s by {name}, the slowest of {len(found) // 2} pair(s)"
    return Result(status, measured, f">= {want:g} Gb/s", "90 % of the port's rate", "", remedy, {"write_Gb_s": value})


def _exchanged(task: Task, others: list[list[object]], partner: int, place: int) -> tuple[float, str, float]:
    """(Gb/s, port, the port's rate) with the task PARTNER; those at odd PLACEs ask."""
    port = active_ports()[0]
    argv = ["ib_write_bw", "-d", port.hca, "-i", str(port.number), "--report_gbits", "-F", "-D", "5", "-p", "18600"]
    if place % 2:
        task.read("serving", partner)
        time.sleep(1.0)  # it says so before it listens
        argv.append(str(others[partner][1]))
    else:
        task.post("serving", 1)
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=90, check=False)
    text = done.stdout.decode(errors="replace")
    value = average(text)
    if done.returncode or not value:
        raise RuntimeError(f"ib_write_bw ended with {done.returncode}: {' '.join(text.split())[-300:]}")
    return value, port.name, port.rate
