"""Each two nodes alone, in rounds in which every node has one partner: names the node whose pairs
are all slow.

A round-robin tournament: n - 1 rounds (n for odd n), so all pairs in about n rounds however many
nodes there are. Pairs of one NVLink domain and pairs over the network are two classes, each judged
by its own: a healthy node that is alone in its rack is slower with everybody than those that share
one.
"""

from __future__ import annotations

import socket
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpcstack_smoke.collectives.bandwidth import MIB, needs_nccl
from hpcstack_smoke.collectives.domain import domain_of_node, pair_class
from hpcstack_smoke.collectives.exact import on_cpu
from hpcstack_smoke.node import sysfs
from hpcstack_smoke.result import FAIL, PASS, WARN, Result, Skip

if TYPE_CHECKING:
    from hpcstack_smoke.context import Context

SLOW = 0.7  # of the median of the others: far outside what healthy pairs differ by
LINE_SHARE = 0.75  # of the line rate, both ways at once and from a single rank
BAD = (
    0.5  # a FAIL; between the two is a WARN: a node on another leaf of a tapered tree may be there
)
MAX_NODES = 64


def plan_tournament(count: int) -> list[list[tuple[int, int]]]:
    """Rounds of pairs of 0 .. COUNT-1 in which each meets each once (the circle method)."""
    players = [*range(count)] + ([-1] if count % 2 else [])
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
    """MATRIX by the class of pair; DOMAINS: the NVLink domain of each node, empty where it ends at
    the node.
    """
    out: dict[str, dict[tuple[int, int], Any]] = {}
    for (a, b), value in matrix.items():
        out.setdefault(pair_class(*(domains[a], domains[b]) if domains else ("", "")), {})[a, b] = (
            value
        )
    return out


def odd_ones(matrix: dict[tuple[int, int], float], count: int, slow: float = SLOW) -> list[int]:
    """Nodes whose best pair is still slow against the median of all pairs without them.

    With two nodes there is one pair and nobody to blame; with three or more a slow node is slow
    with everybody, and a slow LINK leaves each of its two nodes a fast pair elsewhere. Who has but
    one pair, or only pairs with nodes that are odd themselves (in a sweep of few rounds), is not
    blamed: what is slow may be the other.
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


def slow_pairs(
    matrix: dict[tuple[int, int], float], guilty: list[int], slow: float = SLOW
) -> list[tuple[int, int]]:
    """Pairs that are slow although neither of their nodes is."""
    good = {pair: value for pair, value in matrix.items() if not set(pair) & set(guilty)}
    if len(good) < 3:
        return []
    middle = statistics.median(good.values())
    return sorted(pair for pair, value in good.items() if value < slow * middle)


Matrix = dict[tuple[int, int], list[float]]
"""{(node, node): GB/s of each local rank with its like on the other node}."""


def find_guilty(matrix: Matrix, count: int) -> tuple[list[int], list[tuple[int, int]]]:
    """(nodes that are slow on every rail, (node, local rank) that are slow on theirs alone)."""
    rails = len(next(iter(matrix.values())))
    odd = [
        set(odd_ones({pair: values[rail] for pair, values in matrix.items()}, count))
        for rail in range(rails)
    ]
    nodes = set.intersection(*odd)
    single = [(node, rail) for rail, found in enumerate(odd) for node in sorted(found - nodes)]
    return sorted(nodes), single


def odd_rails(matrix: Matrix, slow: float = SLOW) -> list[int]:
    """Local ranks whose rail is slow between two nodes, against the other rails: all that one pair
    can tell.
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
    """GB/s of each pair of nodes, both ways at once: all local ranks together, each with its like
    on the other.
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
        other = (pair[1] if here == pair[0] else pair[0]) * each + context.local_rank
        mine[pair] = size / fastest_exchange(context, group, sent, got, other, other, repeat) / 1e9
    matrix: Matrix = {}
    for rank, one in enumerate(context.all(mine)):
        for pair, value in one.items():
            values = matrix.setdefault(pair, [float("inf")] * each)
            values[rank % each] = min(values[rank % each], value)
    return matrix


def fastest_exchange(
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
    """Seconds of the fastest of REPEAT exchanges, SENT to rank TO and GOT from rank SOURCE, after
    one that is not counted. TOGETHER: all ranks of GROUP make one, and wait for each other before
    every turn.
    """
    import torch
    import torch.distributed as dist

    best = float("inf")
    for turn in range(repeat + 1):
        if together:  # a slow rank holds up its partners of this turn, and nobody by way of them
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
    """What is slow: nodes and rails, pairs whose nodes are both fast elsewhere; whether it is far
    too slow.
    """

    names: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    bad: bool = False


def slow_in(
    matrix: Matrix, hosts: list[str], line: float = 0.0, *, rails_apart: bool = True
) -> Found:
    """What is slow among the pairs of one class. LINE: GB/s that the port of each rail carries, 0
    where nobody says.

    RAILS_APART: each local rank has a port of its own; else they share, and only their sum says
    something.
    """
    if not rails_apart:
        matrix = {pair: [sum(values)] for pair, values in matrix.items()}
    nodes, rails = find_guilty(matrix, len(hosts))
    rails += [(-1, rail) for rail in odd_rails(matrix)]
    least = {pair: min(values) for pair, values in matrix.items()}
    values = sorted(least.values())
    found = Found([hosts[node] for node in nodes])
    found.names += [
        f"local rank {rail} (its GPU or HCA) of {hosts[node] if node >= 0 else 'one of both'}"
        for node, rail in rails
    ]
    links = slow_pairs(least, [*nodes, *(node for node, _ in rails)])
    found.links = [f"{hosts[a]} and {hosts[b]}" for a, b in links]
    worst = min(
        (max(value for pair, value in least.items() if node in pair) for node in nodes), default=0.0
    )
    found.bad = bool(rails) or (bool(nodes) and worst < BAD * statistics.median(values))
    if line and not found.names and statistics.median(values) < LINE_SHARE * line:
        median = statistics.median(values)
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
    """PASS, or FAIL with the slow nodes' names; a single slow pair is a WARN.

    LINE, APART: as in `slow_in`.
    """
    found = [
        slow_in(
            part, hosts, line if kind == "network" else 0.0, rails_apart=apart or kind == "nvlink"
        )
        for kind, part in split_by_class(matrix, domains).items()
    ]
    names = list(dict.fromkeys(name for one in found for name in one.names))
    links = [name for one in found for name in one.links]
    least = {pair: min(values) for pair, values in matrix.items()}
    values = sorted(least.values())
    said = f"{len(matrix)} pair(s), {values[0]:.3g} to {values[-1]:.3g} GB/s"
    if names:
        said = f"slow: {', '.join(names)}; {said}"
    elif links:
        said = f"slow between {', '.join(links)}; {said}"
    table = [
        [round(least.get((min(a, b), max(a, b)), 0.0), 4) for b in range(len(hosts))]
        for a in range(len(hosts))
    ]
    note = context.note()
    heat = [
        {
            "kind": "matrix",
            "name": "pairs of nodes",
            "labels": hosts,
            "values": table,
            "y_unit": "GB/s",
        }
    ]
    remedy = ""
    if names or links:
        remedy = (
            "take what is slow out (scontrol update state=drain), look at its HCA's rate, error "
            "counters and cable"
        )
    status = PASS
    if any(one.bad for one in found):
        status = FAIL
    elif names or links:
        status = WARN
    return Result(
        status,
        f"{said}{'; ' + note if note else ''}",
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


def _run(context: Context, group: Any, size: int, repeat: int) -> Result:
    if context.nodes < 2:
        raise Skip("one node: no pairs of nodes")
    if context.nodes > MAX_NODES:
        raise Skip(f"more than {MAX_NODES} nodes: hpcstack test --sweep measures pairs as jobs")
    names = context.all(socket.gethostname())
    hosts = [names[node * context.per_node] for node in range(context.nodes)]
    domains = context.all(domain_of_node() if context.gpu else "")
    firsts = [domains[node * context.per_node] for node in range(context.nodes)]
    request = context.request
    apart = context.gpu and all(context.all(rails_here(context)))
    line = request.fabric_rate / 8 if apart and len(request.hcas) == context.per_node else 0.0
    return judge_pairs_matrix(
        context, measure_pairs(context, group, size, repeat), hosts, firsts, line, apart=apart
    )


def rails_here(context: Context) -> bool:
    """Whether each local rank has as many ports of this node as the others, and one at least."""
    request = context.request
    ports = [
        port
        for port in sysfs.of_fabric(sysfs.list_ports(), request.fabric, tuple(request.hcas))
        if port.active
    ]
    fastest = max((port.rate for port in ports), default=0.0)
    same = [port for port in ports if port.rate == fastest]
    count = len(request.hcas) or len(same) or sum(sysfs.read_cassini().values())
    return count > 0 and count % context.per_node == 0


def nccl(context: Context) -> Result:
    """Pairs of nodes by NCCL: local rank i with local rank i, which share a rail."""
    needs_nccl(context)
    return _run(context, None, 256 * MIB, 5)


def gloo(context: Context) -> Result:
    """The same by gloo on the CPU."""
    with on_cpu(context) as (alike, group):
        return _run(alike, group, 4 * MIB, 5)
