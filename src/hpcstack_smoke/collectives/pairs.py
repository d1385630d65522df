"""Measure each pair of nodes alone, and name the node whose pairs are all slow.

It is a round-robin tournament: in each round every node has one partner. There are n - 1 rounds (n
for odd n), so all pairs take about n rounds. Pairs within one NVLink domain and pairs over the
network are two classes, each judged by itself: else a healthy node that is alone in its rack would
look slow beside those that share a rack.
"""

from __future__ import annotations

import socket
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpcstack_smoke.collectives.bandwidth import MIB, needs_nccl
from hpcstack_smoke.collectives.domain import find_domain_of_node, pair_class
from hpcstack_smoke.collectives.exact import on_cpu
from hpcstack_smoke.node import sysfs
from hpcstack_smoke.result import FAIL, PASS, WARN, Result, Skip

if TYPE_CHECKING:
    from hpcstack_smoke.context import Context

# Of the median of the others: far outside what healthy pairs differ by
SLOW = 0.7
# Of the line rate, with both directions at once and a single rank on each side
LINE_SHARE = 0.75
# Below this share it is a FAIL. Between the two it is a WARN: the node may only be on another leaf
# switch of a tapered tree.
BAD = 0.5
MAX_NODES = 64


def plan_tournament(count: int) -> list[list[tuple[int, int]]]:
    """Return rounds of pairs of 0 .. COUNT-1 in which each meets each other once.

    By the circle method: the first one stays, the others move on by one place a round.
    """
    players = [*range(count)]
    if count % 2:
        players.append(-1)  # whoever is paired with -1 rests
    rounds = []
    for _ in range(len(players) - 1):
        half = len(players) // 2
        pairs = [(players[n], players[-1 - n]) for n in range(half)]
        rounds.append([(min(pair), max(pair)) for pair in pairs if -1 not in pair])
        players = [players[0], players[-1], *players[1:-1]]
    return rounds


def split_by_class(
    matrix: dict[tuple[int, int], Any], domains: list[str]
) -> dict[str, dict[tuple[int, int], Any]]:
    """Return {class of pair: its part of MATRIX}.

    DOMAINS: the NVLink domain of each node, empty where it ends at the node; without any, all pairs
    are of one class.
    """
    out: dict[str, dict[tuple[int, int], Any]] = {}
    for (a, b), value in matrix.items():
        kind = pair_class("", "")
        if domains:
            kind = pair_class(domains[a], domains[b])
        out.setdefault(kind, {})[a, b] = value
    return out


def find_odd_ones(
    matrix: dict[tuple[int, int], float], count: int, slow: float = SLOW
) -> list[int]:
    """Return the nodes whose best pair is below SLOW of the median of all pairs without them.

    With two nodes there is one pair and nobody to blame. With three or more, a slow node is slow
    with everybody, while a slow LINK leaves each of its two nodes a fast pair elsewhere. A node
    that has one pair only, or only pairs with nodes that are slow themselves (in a sweep of few
    rounds), is not blamed: the other may be the slow one.
    """
    if count < 3:
        return []

    own: dict[int, dict[int, float]] = {}
    for (a, b), value in matrix.items():
        own.setdefault(a, {})[b] = value
        own.setdefault(b, {})[a] = value

    found = []
    for node, values in sorted(own.items()):
        rest = [value for pair, value in matrix.items() if node not in pair]
        if rest and max(values.values()) < slow * statistics.median(rest):
            found.append(node)
    return [node for node in found if sum(other not in found for other in own[node]) > 1]


def find_slow_pairs(
    matrix: dict[tuple[int, int], float], guilty: list[int], slow: float = SLOW
) -> list[tuple[int, int]]:
    """Return the pairs that are slow although neither of their nodes is in GUILTY."""
    good = {pair: value for pair, value in matrix.items() if not set(pair) & set(guilty)}
    if len(good) < 3:
        return []
    middle = statistics.median(good.values())
    return sorted(pair for pair, value in good.items() if value < slow * middle)


Matrix = dict[tuple[int, int], list[float]]
"""{(node, node): GB/s of each local rank with the same local rank of the other node}."""


def find_guilty(matrix: Matrix, count: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Return (nodes slow on every rail, (node, local rank) of each rail that alone is slow).

    COUNT: how many nodes there are.
    """
    rails = len(next(iter(matrix.values())))
    odd = []
    for rail in range(rails):
        of_rail = {pair: values[rail] for pair, values in matrix.items()}
        odd.append(set(find_odd_ones(of_rail, count)))
    nodes = set.intersection(*odd)
    single = [(node, rail) for rail, found in enumerate(odd) for node in sorted(found - nodes)]
    return sorted(nodes), single


def find_odd_rails(matrix: Matrix, slow: float = SLOW) -> list[int]:
    """Return the local ranks whose rail is slower than the other rails, where there is one pair.

    That is all that one pair can show. With more pairs nothing is returned: `find_guilty` says
    which node it is.
    """
    values = next(iter(matrix.values()))
    if len(matrix) != 1 or len(values) < 3:
        return []
    out = []
    for rail, value in enumerate(values):
        rest = [other for number, other in enumerate(values) if number != rail]
        if value < slow * statistics.median(rest):
            out.append(rail)
    return out


def measure_pairs(context: Context, group: Any, size: int, repeat: int) -> Matrix:
    """Return the GB/s of each pair of nodes, with SIZE bytes sent both ways at once.

    All local ranks exchange together, each with the same local rank of the other node.
    """
    import torch
    import torch.distributed as dist

    here, each = context.rank // context.per_node, context.per_node
    sent = torch.ones(size // 4, device=context.device)
    got = torch.empty_like(sent)
    mine: dict[tuple[int, int], float] = {}
    for pairs in plan_tournament(context.nodes):
        dist.barrier(group=group)
        pair = next((pair for pair in pairs if here in pair), None)
        if pair is None:
            continue
        partner = pair[1] if here == pair[0] else pair[0]
        other = partner * each + context.local_rank
        seconds = measure_fastest_exchange(context, group, sent, got, other, other, repeat)
        mine[pair] = size / seconds / 1e9

    # Both ends have measured a pair: the slower one counts
    matrix: Matrix = {}
    for rank, one in enumerate(context.all(mine)):
        for pair, value in one.items():
            values = matrix.setdefault(pair, [float("inf")] * each)
            values[rank % each] = min(values[rank % each], value)
    return matrix


def measure_fastest_exchange(
    context: Context,
    group: Any,
    sent: Any,
    got: Any,
    to: int,
    source: int,
    repeat: int,
    *,
    together: bool = False,
) -> float:
    """Return the seconds of the fastest of REPEAT exchanges, after one that is not counted.

    SENT goes to rank TO, and GOT is received from rank SOURCE. TOGETHER: all ranks of GROUP
    exchange at once, and wait for each other before every turn.
    """
    import torch
    import torch.distributed as dist

    best = float("inf")
    for turn in range(repeat + 1):
        if together:
            # So a slow rank holds up its partners of this turn only, and nobody by way of them
            dist.barrier(group=group)
        if context.gpu:
            torch.cuda.synchronize()
        began = time.perf_counter()
        work = [dist.P2POp(dist.isend, sent, to, group), dist.P2POp(dist.irecv, got, source, group)]
        for one in dist.batch_isend_irecv(work):
            one.wait()
        if context.gpu:
            torch.cuda.synchronize()
        if turn:
            best = min(best, time.perf_counter() - began)
    return best


@dataclass
class Found:
    """What is slow among pairs of nodes.

    `names`: nodes and rails. `links`: pairs whose nodes are both fast elsewhere. `bad`: it is so
    slow that it is a FAIL.
    """

    names: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    bad: bool = False


def find_slow_in(
    matrix: Matrix, hosts: list[str], line: float = 0.0, *, rails_apart: bool = True
) -> Found:
    """Return what is slow among the pairs of one class.

    LINE: GB/s that the port of each rail carries, 0 where it is not known. RAILS_APART: each local
    rank has a port of its own. Else they share ports, and only the sum over rails is compared.
    """
    if not rails_apart:
        matrix = {pair: [sum(values)] for pair, values in matrix.items()}
    nodes, rails = find_guilty(matrix, len(hosts))
    # -1: of one pair, nobody can tell which node it is
    rails += [(-1, rail) for rail in find_odd_rails(matrix)]

    least = {pair: min(values) for pair, values in matrix.items()}
    median = statistics.median(least.values())
    found = Found([hosts[node] for node in nodes])
    for node, rail in rails:
        host = hosts[node] if node >= 0 else "one of both"
        found.names.append(f"local rank {rail} (its GPU or HCA) of {host}")
    links = find_slow_pairs(least, [*nodes, *(node for node, _ in rails)])
    found.links = [f"{hosts[a]} and {hosts[b]}" for a, b in links]

    best_of = [max(value for pair, value in least.items() if node in pair) for node in nodes]
    found.bad = bool(rails) or (bool(nodes) and min(best_of) < BAD * median)
    if line and not found.names and median < LINE_SHARE * line:
        found.names.append(f"all pairs: {median:.3g} of the line's {line:g} GB/s")
        found.bad = median < BAD * line
    return found


def judge_pairs_matrix(
    context: Context,
    matrix: Matrix,
    hosts: list[str],
    domains: list[str],
    line: float = 0.0,
    *,
    apart: bool = True,
) -> Result:
    """Judge MATRIX: slow nodes and rails are a FAIL, or a WARN if less slow; a slow pair is a WARN.

    HOSTS and DOMAINS are those of each node. LINE and APART are as in `find_slow_in`, for pairs over the
    network: the line rate says nothing about NVLink, where rails are always apart.
    """
    found = []
    for kind, part in split_by_class(matrix, domains).items():
        if kind == "nvlink":
            found.append(find_slow_in(part, hosts))
        else:
            found.append(find_slow_in(part, hosts, line, rails_apart=apart))
    names = list(dict.fromkeys(name for one in found for name in one.names))
    links = [name for one in found for name in one.links]

    least = {pair: min(values) for pair, values in matrix.items()}
    values = sorted(least.values())
    measured = f"{len(matrix)} pair(s), {values[0]:.3g} to {values[-1]:.3g} GB/s"
    if names:
        measured = f"slow: {', '.join(names)}; {measured}"
    elif links:
        measured = f"slow between {', '.join(links)}; {measured}"
    note = context.note()
    if note:
        measured += f"; {note}"

    status = PASS
    remedy = ""
    if names or links:
        status = WARN
        remedy = (
            "drain what is slow (scontrol update state=drain), then check its HCA's rate, error "
            "counters and cable"
        )
    if any(one.bad for one in found):
        status = FAIL

    table = []
    for a in range(len(hosts)):
        row = [least.get((min(a, b), max(a, b)), 0.0) for b in range(len(hosts))]
        table.append([round(value, 4) for value in row])
    heat = [
        {
            "kind": "matrix",
            "name": "pairs of nodes",
            "labels": hosts,
            "values": table,
            "y_unit": "GB/s",
        }
    ]
    return Result(
        status,
        measured,
        f"each node and rail has a pair with >= {SLOW:g} of the others' median",
        "peers in the same run",
        remedy=remedy,
        figures={
            "slowest_pair_GB_s": round(values[0], 4),
            "median_pair_GB_s": round(statistics.median(values), 4),
        },
        series=heat,
        informational=bool(note) and not names,
    )


def _run_pairs(context: Context, group: Any, size: int, repeat: int) -> Result:
    """Measure and judge all pairs of nodes, by REPEAT exchanges of SIZE bytes each."""
    if context.nodes < 2:
        raise Skip("one node: no pairs of nodes")
    if context.nodes > MAX_NODES:
        raise Skip(f"more than {MAX_NODES} nodes: hpcstack test --sweep measures pairs as jobs")

    # Of each node, what its first rank says
    firsts = [node * context.per_node for node in range(context.nodes)]
    names = context.all(socket.gethostname())
    hosts = [names[rank] for rank in firsts]
    everyone = context.all(find_domain_of_node() if context.gpu else "")
    domains = [everyone[rank] for rank in firsts]
    request = context.request
    apart = context.gpu and all(context.all(has_rails_here(context)))
    line = 0.0
    if apart and len(request.hcas) == context.per_node:
        line = request.fabric_rate / 8
    matrix = measure_pairs(context, group, size, repeat)
    return judge_pairs_matrix(context, matrix, hosts, domains, line, apart=apart)


def has_rails_here(context: Context) -> bool:
    """Return whether each local rank has as many ports of this node as the others, at least one.

    Ports are the HCAs that the site promises, else the fastest active ports, else Slingshot's.
    """
    request = context.request
    ports = sysfs.select_fabric_ports(sysfs.list_ports(), request.fabric, tuple(request.hcas))
    active = [port for port in ports if port.active]
    fastest = max((port.rate for port in active), default=0.0)
    same = [port for port in active if port.rate == fastest]
    count = len(request.hcas) or len(same) or sum(sysfs.read_cassini().values())
    return count > 0 and count % context.per_node == 0


def check_nccl_pairs(context: Context) -> Result:
    """Measure pairs of nodes by NCCL: local rank i with local rank i, which share a rail."""
    needs_nccl(context)
    return _run_pairs(context, None, 256 * MIB, 5)


def check_nccl_gloo_pairs(context: Context) -> Result:
    """Measure pairs of nodes by gloo on the CPU."""
    with on_cpu(context) as (alike, group):
        return _run_pairs(alike, group, 4 * MIB, 5)
