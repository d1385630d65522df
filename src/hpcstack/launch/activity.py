"""What the GPUs and ports of a job's nodes do while it hangs, by what launchers/on-node/stacks.sh
printed. Pure.

A rank that waits in a collective of NCCL keeps its GPU busy; who is stuck elsewhere leaves it idle.
Ports that move nothing say that nobody sends; their error counters say why somebody cannot.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hpcstack.core.errors import format_count

GPU = re.compile(r"^(?: *\d+: ?)?hpcstack-gpu: ([^,]+), (.*)$")
PORT = re.compile(r"^(?: *\d+: ?)?hpcstack-port: (\S+) (\S.*)$")
FLIGHTS = re.compile(r"^(?: *\d+: ?)?hpcstack-flights: (\d+) (/.*)$")
DATA = ("port_xmit_data", "port_rcv_data")  # in words of four bytes: IBTA's PortCounters
WAIT = (
    "port_xmit_wait"  # ticks in which something was to be sent and could not: congestion, no error
)
BUSY, IDLE, MOST = 50.0, 5.0, 8


@dataclass
class Activity:
    """`gpus`: {(host, index): (percent, watts)}; `silent`: {host: why}; `ports`: {(host, port):
    {counter: gain}}; `flights`: {how the names of flight recorders' files begin: when the first of
    their ranks was started}.
    """

    gpus: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)
    ports: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)
    flights: dict[str, int] = field(default_factory=dict)


def parse_activity(text: str) -> Activity:
    """All of it in TEXT, of all nodes; what is no line of ours is left out."""
    out = Activity()
    for line in text.splitlines():
        if gpu := GPU.match(line):
            _add_gpu(out, gpu[1], gpu[2])
        elif port := PORT.match(line):
            name, *words = port[2].split()
            gains = zip(words[::2], words[1::2], strict=False)
            out.ports[port[1], name] = {
                counter: int(gain) for counter, gain in gains if gain.isdigit()
            }
        elif flights := FLIGHTS.match(line):
            out.flights[flights[2]] = min(
                int(flights[1]), out.flights.get(flights[2], int(flights[1]))
            )
    return out


def _add_gpu(out: Activity, host: str, said: str) -> None:
    words = [word.strip() for word in said.split(",")]
    try:
        out.gpus[host, words[0]] = (float(words[1]), float(words[2]))
    except (IndexError, ValueError):
        if not (words[0].isdigit() and len(words) > 1):  # a GPU may lack a reading: [N/A]
            out.silent[host] = said[:200]


def summarise_activity(found: Activity) -> list[str]:
    """Lines for people: GPUs that do not answer, idle ones beside busy ones, ports, errors."""
    out = [f"ODD: nvidia-smi on {host} {why}" for host, why in sorted(found.silent.items())][:MOST]
    busy = [key for key, (percent, _) in found.gpus.items() if percent >= BUSY]
    idle = [key for key, (percent, _) in sorted(found.gpus.items()) if percent <= IDLE]
    if found.gpus:
        out.append(f"GPUs: {len(busy)} of {len(found.gpus)} busy")
    if busy and idle and len(idle) < len(busy):
        names = ", ".join(
            f"{index} of {host} ({found.gpus[host, index][1]:.0f} W)" for host, index in idle[:MOST]
        )
        more = f" and {len(idle) - MOST} more" if len(idle) > MOST else ""
        out.append(
            f"idle while {format_count(len(busy), 'GPU')} work: {names}{more} (who waits in "
            f"NCCL keeps his GPU busy)"
        )
    return [*out, *_ports(found)]


def _ports(found: Activity) -> list[str]:
    if not found.ports:
        return []
    moved = {key: 4 * sum(one.get(name, 0) for name in DATA) for key, one in found.ports.items()}
    moving = [key for key, size in moved.items() if size > 1_000_000]
    total = f"{sum(moved.values()) / 1e9:.1f} GB/s in all" if moving else "nobody sends"
    out = [f"ports: {len(moving)} of {len(moved)} move data, {total}"]
    for (host, port), one in sorted(found.ports.items()):
        errors = ", ".join(
            f"{name} +{gain}" for name, gain in one.items() if gain and name not in (*DATA, WAIT)
        )
        if errors and len(out) <= MOST:
            out.append(f"errors within a second on {port} of {host}: {errors}")
    return out
