"""ib_write_bw of perftest between neighbouring nodes, where the image has it: what a port carries
without NCCL.

Expected: HDR 180 and NDR 360 Gb/s, which are 90 % of the link's rate; other rates by the same
share.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Any

from hpcstack_smoke.node import sysfs
from hpcstack_smoke.result import FAIL, PASS, WARN, Result, Skip
from hpcstack_smoke.store import find_address

if TYPE_CHECKING:
    from hpcstack_smoke.tasks import Task

SHARE, FIRST_PORT, WAIT_S = 0.9, 18600, 600.0
ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s*$")


def read_average(text: str) -> float:
    """Gb/s of the last row of the table: bytes, iterations, peak, average, message rate; 0 where
    there is none.
    """
    found = [float(match[4]) for line in text.splitlines() if (match := ROW.match(line))]
    return found[-1] if found else 0.0


def write_bw(task: Task) -> Result:
    """The first task of each node talks to its neighbour's, over one port after another; the last
    of an odd number of nodes to the first's. The slowest port counts; the first task judges for
    all.
    """
    ports = sysfs.of_fabric(sysfs.active_ports(), task.request.fabric, tuple(task.request.hcas))
    ports = [
        port for port in ports if port.layer in ("InfiniBand", "Ethernet")
    ]  # EFA speaks otherwise
    here = [
        bool(shutil.which("ib_write_bw")),
        find_address(),
        [[port.hca, port.number, port.rate] for port in ports],
    ]
    nodes = task.of_nodes("ready", here)
    found: list[list[Any]] = []
    for turn, pairs in enumerate(plan_turns(len(nodes)) if _all_ready(nodes) else []):
        place = task.rank // (task.world // task.nodes)
        partner = next(
            (other for pair in pairs if place in pair for other in pair if other != place), None
        )
        if partner is not None:
            found += _exchanged(task, nodes, partner, turn, server=place < partner)
    everyone = task.of_nodes("values", found)
    if task.rank == 0:
        task.post("verdict", [_all_ready(nodes), [one for values in everyone for one in values]])
    ready, values = task.read("verdict", 0, WAIT_S)
    if not ready:
        raise Skip("one node, no ib_write_bw in the image, or no active port on a node")
    return judge_ports(values, promised=bool(task.request.hcas and task.request.fabric_rate))


def _all_ready(nodes: list[Any]) -> bool:
    return len(nodes) > 1 and all(tool and ports for tool, _, ports in nodes)


def plan_turns(nodes: int) -> list[list[tuple[int, int]]]:
    """Who talks to whom: neighbours, and where their number is odd the last node to the first,
    afterwards.
    """
    pairs = [(first, first + 1) for first in range(0, nodes - 1, 2)]
    return [pairs, [(0, nodes - 1)]] if nodes % 2 and nodes > 1 else [pairs]


def judge_ports(values: list[list[Any]], *, promised: bool) -> Result:
    """[[Gb/s, port, the port's rate]]: below 90 % of the rate is a FAIL where the site promises it."""
    if not values:
        raise RuntimeError("no pair of nodes measured anything")
    slow = [
        f"{name} {value:.0f} of {rate:g}" for value, name, rate in values if value < SHARE * rate
    ]
    value, name, rate = min(values, key=lambda one: one[0] / max(one[2], 1))
    status = PASS
    if slow:
        status = FAIL if promised else WARN
    remedy = "" if status == PASS else "look at the cable, the switch's port, PCIe width: mlxlink"
    measured = f"{value:.0f} Gb/s by {name}, the slowest of {len(values)} port(s)"
    measured = f"slow: {', '.join(slow[:8])} Gb/s; {measured}" if slow else measured
    return Result(
        status,
        measured,
        f">= {SHARE * rate:g} Gb/s",
        "90 % of the port's rate",
        "",
        remedy,
        {"write_Gb_per_s": value},
    )


def _exchanged(
    task: Task, nodes: list[Any], partner: int, turn: int, *, server: bool
) -> list[list[Any]]:
    """[[Gb/s, port, rate]] of each port with the node PARTNER."""
    mine, theirs = nodes[task.rank // (task.world // task.nodes)][2], nodes[partner][2]
    out: list[list[Any]] = []
    for place, (hca, number, rate) in enumerate(mine[: len(theirs)]):
        argv = [
            "ib_write_bw",
            "-d",
            hca,
            "-i",
            str(number),
            "--report_gbits",
            "-F",
            "-D",
            "3",
            "-p",
            str(FIRST_PORT + place),
        ]
        ready = f"serving {turn} {place}"
        if server:
            task.post(ready, 1)
        else:
            task.read(ready, partner * (task.world // task.nodes))
            argv.append(str(nodes[partner][1]))
        value, why = _run(argv, tries=1 if server else 4)
        out.append([value, f"{socket.gethostname()} {hca}:{number}{why}", rate])
    return out


def _run(argv: list[str], tries: int) -> tuple[float, str]:
    """(Gb/s, or 0 and why there are none): who asks tries again, as the other says that it serves
    before it listens.
    """
    text = ""
    for turn in range(tries):
        time.sleep(1.0 if tries > 1 else 0.0)
        try:
            done = subprocess.run(
                argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False
            )
        except subprocess.TimeoutExpired:
            return 0.0, " (not ended in 60 s)"
        text = done.stdout.decode(errors="replace")
        if done.returncode == 0 and (value := read_average(text)):
            return value, ""
        if turn == tries - 1:
            break
    return 0.0, f" ({' '.join(text.split())[-120:]})"
