"""Read what the GPUs and ports of a hanging job's nodes do, as stacks.sh printed it. Pure.

A rank that waits in a collective of NCCL keeps its GPU busy; one that is stuck elsewhere leaves it
idle. Ports that move nothing mean that nobody sends, and their error counters may say why.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hpcstack.core.errors import format_count

# Lines of launchers/on-node/stacks.sh, which srun may have labelled: host and the rest
GPU = re.compile(r"^(?: *\d+: ?)?hpcstack-gpu: ([^,]+), (.*)$")
PORT = re.compile(r"^(?: *\d+: ?)?hpcstack-port: (\S+) (\S.*)$")
# When the rank was started, and how the names of its flight recorder's files begin
FLIGHTS = re.compile(r"^(?: *\d+: ?)?hpcstack-flights: (\d+) (/.*)$")
DATA = ("port_xmit_data", "port_rcv_data")  # in words of four bytes: IBTA's PortCounters
# Ticks in which something was to be sent and could not: congestion, which is no error
WAIT = "port_xmit_wait"
BUSY, IDLE = 50.0, 5.0  # percent of a GPU's time
MOST = 8  # lines, or names in a line


@dataclass
class Activity:
    """What the nodes do.

    `gpus` is {(host, index): (percent busy, watts)}; `silent` is {host: why nvidia-smi does not
    answer}; `ports` is {(host, port): {counter: gain within a second}}. `flights` is {how the names
    of flight recorders' files begin: when the first of their ranks was started}.
    """

    gpus: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)
    ports: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)
    flights: dict[str, int] = field(default_factory=dict)


def parse_activity(text: str) -> Activity:
    """Return the activity in TEXT, what stacks.sh printed on all nodes. Other lines are ignored."""
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
            started = int(flights[1])
            prefix = flights[2]
            out.flights[prefix] = min(started, out.flights.get(prefix, started))
    return out


def _add_gpu(out: Activity, host: str, said: str) -> None:
    """Add to OUT what nvidia-smi SAID on HOST: `index, percent, watts` of a GPU, or an error."""
    words = [word.strip() for word in said.split(",")]
    try:
        out.gpus[host, words[0]] = (float(words[1]), float(words[2]))
    except (IndexError, ValueError):
        lacks_a_reading = words[0].isdigit() and len(words) > 1  # `3, [N/A], 88.1`
        if not lacks_a_reading:
            out.silent[host] = said[:200]


def summarise_activity(found: Activity) -> list[str]:
    """Return lines for people about what was FOUND.

    They say which GPUs do not answer or idle beside busy ones, what ports move, and their errors.
    """
    out = [f"ODD: nvidia-smi on {host} {why}" for host, why in sorted(found.silent.items())][:MOST]
    busy = [key for key, (percent, _) in found.gpus.items() if percent >= BUSY]
    idle = [key for key, (percent, _) in sorted(found.gpus.items()) if percent <= IDLE]
    if found.gpus:
        out.append(f"GPUs: {len(busy)} of {len(found.gpus)} busy")
    # Where most GPUs are idle, idleness does not tell who is stuck.
    if 0 < len(idle) < len(busy):
        names = []
        for host, index in idle[:MOST]:
            watts = found.gpus[host, index][1]
            names.append(f"{index} of {host} ({watts:.0f} W)")
        more = f" and {len(idle) - MOST} more" if len(idle) > MOST else ""
        out.append(
            f"idle while {format_count(len(busy), 'GPU')} work: {', '.join(names)}{more} "
            "(a rank that waits in NCCL keeps its GPU busy)"
        )
    return [*out, *_summarise_ports(found)]


def _summarise_ports(found: Activity) -> list[str]:
    """Return a line on what the ports move, and one for each port that counted errors."""
    if not found.ports:
        return []
    moved = {key: 4 * sum(one.get(name, 0) for name in DATA) for key, one in found.ports.items()}
    moving = [key for key, size in moved.items() if size > 1_000_000]
    total = "nobody sends"
    if moving:
        total = f"{sum(moved.values()) / 1e9:.1f} GB/s in all"
    out = [f"ports: {len(moving)} of {len(moved)} move data, {total}"]
    for (host, port), one in sorted(found.ports.items()):
        counters = [name for name in one if name not in (*DATA, WAIT)]
        errors = ", ".join(f"{name} +{one[name]}" for name in counters if one[name])
        if errors and len(out) <= MOST:
            out.append(f"errors within a second on {port} of {host}: {errors}")
    return out
