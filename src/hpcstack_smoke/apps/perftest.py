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
    """The first task of each node talks to the first of the next: even nodes serve, odd ones ask."""
    ready = bool(shutil.which("ib_write_bw")) and bool(active_ports())
    others = task.all("ready", [ready, address(), task.local])
    if not all(one[0] for one in others):
        raise Skip("no ib_write_bw in the image, or no active port on a node")
    firsts = [rank for rank, one in enumerate(others) if one[2] == 0]
    if len(firsts) < 2 or task.local:
        raise Skip("one node: nothing to talk to" if len(firsts) < 2 else "the node's first task does it")
    place = firsts.index(task.rank)
    if place == len(firsts) - 1 and place % 2 == 0:
        raise Skip("an odd number of nodes: the last one has no partner")
    port = active_ports()[0]
    argv = ["ib_write_bw", "-d", port.hca, "-i", str(port.number), "--report_gbits", "-F", "-D", "5", "-p", "18600"]
    if place % 2:
        task.read("serving", firsts[place - 1])
        time.sleep(1.0)
        argv.append(others[firsts[place - 1]][1])
    else:
        task.post("serving", 1)
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=90, check=False)
    text = done.stdout.decode(errors="replace")
    value, want = average(text), SHARE * port.rate
    if done.returncode or not value:
        raise RuntimeError(f"ib_write_bw ended with {done.returncode}: {' '.join(text.split())[-300:]}")
    status = PASS if value >= want else WARN
    return Result(status, f"{value:.0f} Gb/s by {port.name}", f">= {want:g} Gb/s", "90 % of the port's rate",
                  remedy="" if status == PASS else "look at the cable, the switch's port, PCIe width: mlxlink",
                  figures={"write_Gb_s": value})  # fmt: skip
