"""perftest's ib_write_bw between neighbouring nodes: what a port carries without NCCL.

It runs where the image has perftest. Expected are 90 % of the port's rate, such as 180 Gb/s of HDR
and 360 Gb/s of NDR.

Tested in tests/unit/smoke/test_nccltests.py.
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

SHARE = 0.9  # of a port's rate that is expected
FIRST_PORT = 18600  # TCP port of the first HCA port's pair; the next ones follow
WAIT_S = 600.0  # for the verdict of the first task
# bytes, iterations, peak, average, message rate
ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s*$")


def read_average(text: str) -> float:
    """Return the average, in Gb/s, of the last row of ib_write_bw's table; 0 without a row."""
    rows = [match for match in map(ROW.match, text.splitlines()) if match]
    return float(rows[-1][4]) if rows else 0.0


def check_fabric_write(task: Task) -> Result:
    """Measure each port of each node with that of a neighbour. The slowest port counts.

    The first task of each node measures, one port after another, in the turns of `plan_turns`.
    The first of all tells the others what was found, so that all judge the same.
    """
    ports = sysfs.select_fabric_ports(
        sysfs.active_ports(), task.request.fabric, tuple(task.request.hcas)
    )
    # EFA's ports have a protocol of their own
    ports = [port for port in ports if port.layer in ("InfiniBand", "Ethernet")]
    has_tool = bool(shutil.which("ib_write_bw"))
    rows = [[port.hca, port.number, port.rate] for port in ports]
    nodes = task.of_nodes("ready", [has_tool, find_address(), rows])

    found: list[list[Any]] = []
    turns = plan_turns(len(nodes)) if _all_ready(nodes) else []
    for turn, pairs in enumerate(turns):
        node = task.rank // (task.world // task.nodes)
        partner = _find_partner(node, pairs)
        if partner is not None:
            found += _measure_ports(task, nodes, partner, turn, server=node < partner)

    everyone = task.of_nodes("values", found)
    if task.rank == 0:
        task.post("verdict", [_all_ready(nodes), [one for values in everyone for one in values]])
    ready, values = task.read("verdict", 0, WAIT_S)
    if not ready:
        raise Skip("one node, no ib_write_bw in the image, or no active port on a node")
    return judge_ports(values, promised=bool(task.request.hcas and task.request.fabric_rate))


def _all_ready(nodes: list[Any]) -> bool:
    """Whether there are two or more NODES, each with the tool and a port."""
    return len(nodes) > 1 and all(tool and ports for tool, _, ports in nodes)


def plan_turns(nodes: int) -> list[list[tuple[int, int]]]:
    """Return the turns of NODES nodes, each a list of the pairs that measure at the same time.

    Neighbours are a pair. Of an odd number of nodes the last one is left over: it measures with
    the first in a turn of their own.
    """
    pairs = [(first, first + 1) for first in range(0, nodes - 1, 2)]
    if nodes % 2 and nodes > 1:
        return [pairs, [(0, nodes - 1)]]
    return [pairs]


def _find_partner(node: int, pairs: list[tuple[int, int]]) -> int | None:
    """Return with whom NODE is in one of PAIRS; None if it is in none."""
    for first, second in pairs:
        if node == first:
            return second
        if node == second:
            return first
    return None


def judge_ports(values: list[list[Any]], *, promised: bool) -> Result:
    """Judge VALUES, each [Gb/s, port, the port's rate].

    A port below 90 % of its rate is a FAIL where the site has PROMISED that rate, else a WARN.
    RuntimeError where nothing was measured.
    """
    if not values:
        raise RuntimeError("no pair of nodes measured anything")
    slow = [
        f"{name} {value:.0f} of {rate:g}" for value, name, rate in values if value < SHARE * rate
    ]
    value, name, rate = min(values, key=lambda one: one[0] / max(one[2], 1))

    status = PASS
    remedy = ""
    measured = f"{value:.0f} Gb/s by {name}, the slowest of {len(values)} port(s)"
    if slow:
        status = FAIL if promised else WARN
        remedy = "look at the cable, the switch's port, PCIe width: mlxlink"
        measured = f"slow: {', '.join(slow[:8])} Gb/s; {measured}"
    return Result(
        status,
        measured,
        f">= {SHARE * rate:g} Gb/s",
        "90 % of the port's rate",
        "",
        remedy,
        {"write_Gb_per_s": value},
    )


def _measure_ports(
    task: Task, nodes: list[Any], partner: int, turn: int, *, server: bool
) -> list[list[Any]]:
    """Measure each port of this node, as SERVER or client of the node PARTNER.

    The first port is measured with PARTNER's first one, and so on. Return [[Gb/s, the port's name,
    its rate]]; where nothing was measured that is 0, and the reason comes after the name.
    """
    each = task.world // task.nodes
    mine = nodes[task.rank // each][2]
    theirs = nodes[partner][2]
    out: list[list[Any]] = []
    for place, (hca, number, rate) in enumerate(mine[: len(theirs)]):
        argv = ["ib_write_bw", "-d", hca, "-i", str(number), "--report_gbits", "-F", "-D", "3"]
        argv += ["-p", str(FIRST_PORT + place)]
        ready = f"serving {turn} {place}"
        if server:
            task.post(ready, 1)
        else:
            task.read(ready, partner * each)
            argv.append(str(nodes[partner][1]))
        value, why = _run_tool(argv, tries=1 if server else 4)
        out.append([value, f"{socket.gethostname()} {hca}:{number}{why}", rate])
    return out


def _run_tool(argv: list[str], tries: int) -> tuple[float, str]:
    """Run ib_write_bw, up to TRIES times. Return (Gb/s, ""), or (0, the reason in brackets).

    A client needs several tries: the server says that it serves before it listens.
    """
    text = ""
    for _ in range(tries):
        time.sleep(1.0 if tries > 1 else 0.0)
        try:
            done = subprocess.run(
                argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False
            )
        except subprocess.TimeoutExpired:
            return 0.0, " (not ended in 60 s)"
        text = done.stdout.decode(errors="replace")
        value = read_average(text) if done.returncode == 0 else 0.0
        if value:
            return value, ""
    return 0.0, f" ({' '.join(text.split())[-120:]})"
