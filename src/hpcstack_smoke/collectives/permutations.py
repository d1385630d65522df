"""Measure what the fabric carries under load: all nodes send at once, by random permutations.

Pairs that are measured alone have paths of their own. When everybody sends, paths meet where the
tree is tapered or routes collide. What arrives is compared with ==, as nothing else loads all ports
at once. How much slower than alone is still healthy depends on the fabric, and no source says it:
the figures are for the site's baselines and history.
"""

from __future__ import annotations

import random
import socket
import statistics
from typing import TYPE_CHECKING, Any

from hpcstack_smoke.collectives.bandwidth import MIB, needs_nccl
from hpcstack_smoke.collectives.domain import find_domain_of_node
from hpcstack_smoke.collectives.exact import on_cpu
from hpcstack_smoke.collectives.pairs import measure_fastest_exchange
from hpcstack_smoke.result import FAIL, PASS, WARN, Result, Skip

if TYPE_CHECKING:
    from hpcstack_smoke.context import Context

ROUNDS, REPEAT, SEED = 6, 3, 1
# Of the others' median, in a node's best permutation: below, it is slow whoever the partner is
SLOW = 0.5
# With fewer nodes there are too few others to hold one against
FEW = 4


def plan_permutations(count: int, rounds: int = ROUNDS) -> list[list[int]]:
    """Return permutations that say to which node each of COUNT nodes sends, never to itself.

    They are the same on every rank. With FEW nodes or more, no two nodes are partners, in either
    direction, in all permutations: else a slow node would make the other look slow. More than
    ROUNDS are made where that needs it.
    """
    if count < 3:
        return [[1, 0]][: count - 1]
    dice = random.Random(SEED)
    out: list[list[int]] = []
    always: set[tuple[int, int]] | None = None  # pairs that are partners in all so far
    while len(out) < rounds or (count >= FEW and always):
        found = [*range(count)]
        dice.shuffle(found)
        if any(node == to for node, to in enumerate(found)):
            continue
        out.append(found)
        partners = {(min(pair), max(pair)) for pair in enumerate(found)}
        always = partners if always is None else always & partners
    return out


def _run_permutations(context: Context, group: Any, size: int) -> Result:
    """Measure and judge all permutations, by exchanges of SIZE bytes from each rank."""
    import torch

    if context.nodes < 2:
        raise Skip("one node: nothing goes over the network")

    here, each = context.rank // context.per_node, context.per_node
    # Integers up to 250 plus the rank, which fp32 represents exactly: they tell who sent them
    numbers = torch.arange(size // 4, device=context.device, dtype=torch.float32) % 251
    sent = numbers + context.rank
    got = torch.empty_like(numbers)

    # The first two nodes alone, to compare with
    alone = 0.0
    if here < 2:
        other = (1 - here) * each + context.local_rank
        alone = (
            size / measure_fastest_exchange(context, group, sent, got, other, other, REPEAT) / 1e9
        )

    rates = []
    wrong = []
    for to in plan_permutations(context.nodes):
        there = to[here] * each + context.local_rank
        source = to.index(here) * each + context.local_rank
        got.zero_()
        seconds = measure_fastest_exchange(
            context, group, sent, got, there, source, REPEAT, together=True
        )
        rates.append(size / seconds / 1e9)
        if not torch.equal(got, numbers + source):
            wrong.append(source)

    domains = context.all(find_domain_of_node() if context.gpu else "")[::each]
    found = context.all((socket.gethostname(), alone, rates, wrong))
    return judge_permutations(context, found, domains)


Row = tuple[str, float, list[float], list[int]]
"""Of one rank: its host, GB/s alone, GB/s in each permutation, ranks that sent it wrong data."""


def judge_permutations(context: Context, found: list[Row], domains: list[str]) -> Result:
    """Judge FOUND, each rank's Row: wrong data is a FAIL, a node slow with every partner a WARN.

    DOMAINS: the NVLink domain of each node, empty where it ends at the node. Where some pairs of
    nodes have NVLink and others the network, nobody is blamed: a healthy node that is alone in its
    rack is slower with everybody.
    """
    each = context.per_node
    nodes = [found[node * each : (node + 1) * each] for node in range(context.nodes)]
    hosts = [rows[0][0] for rows in nodes]
    wrong = [
        f"{host} from {found[source][0]}" for host, _, _, sources in found for source in sources
    ]
    alike = len(set(domains)) <= 1
    slow = find_slow_nodes(nodes) if alike and not wrong else []

    alone = statistics.median(row[1] for row in found if row[1])
    values = [rate for _, _, rates, _ in found for rate in rates]
    at_once = statistics.median(values)
    slowest = min(values)
    measured = f"{at_once:.3g} GB/s at once, {alone:.3g} alone, {slowest:.3g} the slowest"

    status = PASS
    remedy = ""
    if wrong:
        status = FAIL
        measured = f"wrong data: {', '.join(dict.fromkeys(wrong))}; {measured}"
    elif slow:
        status = WARN
        measured = f"slow with every partner: {', '.join(hosts[node] for node in slow)}; {measured}"
    if wrong or slow:
        remedy = "drain these nodes and check their HCAs and cables"
    note = context.note()
    if note:
        measured += f"; {note}"
    return Result(
        status,
        measured,
        "each rank's numbers arrive",
        "compared with ==",
        remedy=remedy,
        figures={
            "alone_GB_s": round(alone, 4),
            "at_once_GB_s": round(at_once, 4),
            "slowest_GB_s": round(slowest, 4),
        },
        informational=bool(note) and not wrong,
    )


def find_slow_nodes(nodes: list[list[Row]]) -> list[int]:
    """Return the nodes whose best permutation is below SLOW of the others' median.

    NODES: the rows of each node's ranks. The slowest rank of a node counts in each permutation.
    """
    if len(nodes) < FEW:
        return []
    best = []
    for rows in nodes:
        permutations = zip(*(rates for _, _, rates, _ in rows))
        best.append(max(min(rates) for rates in permutations))

    out = []
    for node, value in enumerate(best):
        others = [other for number, other in enumerate(best) if number != node]
        if value < SLOW * statistics.median(others):
            out.append(node)
    return out


def check_nccl_permutations(context: Context) -> Result:
    """Measure permutations by NCCL: local rank i to local rank i, over its rail."""
    needs_nccl(context)
    return _run_permutations(context, None, 256 * MIB)


def check_nccl_gloo_permutations(context: Context) -> Result:
    """Measure permutations by gloo on the CPU."""
    with on_cpu(context) as (alike, group):
        return _run_permutations(alike, group, 4 * MIB)
