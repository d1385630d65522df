"""All nodes at once, each sending to another one by random permutations: what the fabric carries
under load.

Pairs alone use paths of their own; with everybody sending, paths meet where the tree is tapered or
routes collide. What arrives is compared with ==, as nothing else loads all ports at once. How much
less than alone is healthy depends on the fabric, and no source says it: the figures are for the
site's baselines and its history.
"""

from __future__ import annotations

import random
import socket
import statistics
from typing import TYPE_CHECKING, Any

from hpcstack_smoke.collectives.bandwidth import MIB, needs_nccl
from hpcstack_smoke.collectives.domain import domain_of_node
from hpcstack_smoke.collectives.exact import on_cpu
from hpcstack_smoke.collectives.pairs import fastest_exchange
from hpcstack_smoke.result import FAIL, PASS, WARN, Result, Skip

if TYPE_CHECKING:
    from hpcstack_smoke.context import Context

ROUNDS, REPEAT, SEED = 6, 3, 1
SLOW = 0.5  # of the others' median in the best of all permutations: too slow whoever the partner is
FEW = 4  # nodes, below which nobody can be held against the others


def plan_permutations(count: int, rounds: int = ROUNDS) -> list[list[int]]:
    """To whom each of COUNT nodes sends: permutations in which nobody sends to himself, alike on
    every rank.

    From FEW nodes on no two are partners, either way, in all of them: else one that is slow would
    make the other look so. That needs four at least; more are made where ROUNDS do not suffice.
    """
    if count < 3:
        return [[1, 0]][: count - 1]
    dice = random.Random(SEED)
    out: list[list[int]] = []
    always: set[tuple[int, int]] | None = None
    while len(out) < rounds or (count >= FEW and always):
        found = [*range(count)]
        dice.shuffle(found)
        if any(node == to for node, to in enumerate(found)):
            continue
        out.append(found)
        partners = {(min(pair), max(pair)) for pair in enumerate(found)}
        always = partners if always is None else always & partners
    return out


def _run(context: Context, group: Any, size: int) -> Result:
    import torch

    if context.nodes < 2:
        raise Skip("one node: nothing goes over the network")
    here, each = context.rank // context.per_node, context.per_node
    numbers = torch.arange(size // 4, device=context.device, dtype=torch.float32) % 251
    sent, got = numbers + context.rank, torch.empty_like(numbers)
    alone = 0.0
    if here < 2:
        other = (1 - here) * each + context.local_rank
        alone = size / fastest_exchange(context, group, sent, got, other, other, REPEAT) / 1e9
    rates, wrong = [], []
    for to in plan_permutations(context.nodes):
        source = to.index(here) * each + context.local_rank
        got.zero_()
        there = to[here] * each + context.local_rank
        seconds = fastest_exchange(context, group, sent, got, there, source, REPEAT, together=True)
        rates.append(size / seconds / 1e9)
        if not torch.equal(got, numbers + source):
            wrong.append(source)
    domains = context.all(domain_of_node() if context.gpu else "")[::each]
    return judge_permutations(
        context, context.all((socket.gethostname(), alone, rates, wrong)), domains
    )


Row = tuple[str, float, list[float], list[int]]
"""Of one rank: its host, GB/s alone, GB/s in each permutation, ranks from which it got something wrong."""


def judge_permutations(context: Context, found: list[Row], domains: list[str]) -> Result:
    """FAIL where something arrived wrong; WARN where a node is slow with every partner.

    DOMAINS: the NVLink domain of each node, empty where it ends at the node. Where some pairs of
    nodes have NVLink and others the network, nobody is blamed: a healthy node that is alone in its
    rack is slower with everybody.
    """
    each = context.per_node
    hosts = [found[node * each][0] for node in range(context.nodes)]
    wrong = [
        f"{host} from {found[source][0]}" for host, _, _, sources in found for source in sources
    ]
    values = [rate for _, _, rates, _ in found for rate in rates]
    alone = [row[1] for row in found if row[1]]
    alike = len(set(domains)) <= 1
    nodes = [found[node * each : (node + 1) * each] for node in range(context.nodes)]
    slow = slow_nodes(nodes) if alike and not wrong else []
    one, many, least = statistics.median(alone), statistics.median(values), min(values)
    figures = {"alone_GB_s": one, "at_once_GB_s": many, "slowest_GB_s": least}
    said = f"{many:.3g} GB/s at once, {one:.3g} alone, {least:.3g} the slowest"
    if wrong:
        said = f"wrong data: {', '.join(dict.fromkeys(wrong))}; {said}"
    elif slow:
        said = f"slow with every partner: {', '.join(hosts[node] for node in slow)}; {said}"
    note = context.note()
    status = PASS
    if wrong:
        status = FAIL
    elif slow:
        status = WARN
    return Result(
        status,
        f"{said}{'; ' + note if note else ''}",
        "each rank's numbers arrive",
        "compared with ==",
        remedy="take these nodes out and look at their HCAs and cables" if wrong or slow else "",
        figures={name: round(value, 4) for name, value in figures.items()},
        informational=bool(note) and not wrong,
    )


def slow_nodes(nodes: list[list[Row]]) -> list[int]:
    """Nodes whose best permutation is below SLOW of the others' median.

    Each node is the rows of its ranks.
    """
    if len(nodes) < FEW:
        return []
    best = [
        max(min(rates) for rates in zip(*(row[2] for row in rows), strict=True)) for rows in nodes
    ]
    return [
        node
        for node, value in enumerate(best)
        if value
        < SLOW * statistics.median(other for number, other in enumerate(best) if number != node)
    ]


def nccl(context: Context) -> Result:
    """By NCCL: local rank i to local rank i, over its rail."""
    needs_nccl(context)
    return _run(context, None, 256 * MIB)


def gloo(context: Context) -> Result:
    """The same by gloo on the CPU."""
    with on_cpu(context) as (alike, group):
        return _run(alike, group, 4 * MIB)
