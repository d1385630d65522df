"""Find nodes on which more jobs died than chance explains. Pure.

A job of many nodes that dies says little of each of them. But if job after job dies that had one
node in it, while most jobs without it end well, that node is looked at first.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.slurm.nodelist import expand_nodelist

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# States of jobs that died, perhaps of a node. TIMEOUT and CANCELLED are somebody's choice, and
# OUT_OF_MEMORY and DEADLINE the job's own
DIED = ("FAILED", "NODE_FAIL", "BOOT_FAIL")
COUNTED = (*DIED, "COMPLETED")
# Fewer dead jobs than this say nothing; and how seldom chance may give as many on any one node
FEWEST, CHANCE = 3, 0.01


@dataclass(frozen=True)
class EndedJob:
    """A job that is over: its number, its user, its state, and the nodes that it had."""

    number: str
    user: str
    state: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class NodeFailures:
    """One node: how many jobs ended on it, and which of them died.

    `chance` is how probable so many or more are on any one of the nodes, if all nodes are alike.
    """

    node: str
    jobs: int
    died: tuple[str, ...]
    chance: float

    @property
    def is_odd(self) -> bool:
        return len(self.died) >= FEWEST and self.chance < CHANCE


def parse_ended_jobs(rows: Iterable[Sequence[str]]) -> list[EndedJob]:
    """Return the jobs of ROWS, each (number, user, state, list of nodes), that count.

    Raise NodelistError for nodes that are not understood: without them others would look odd.
    """
    out = []
    for number, user, state, nodelist in rows:
        word = state.partition(" ")[0]  # CANCELLED by 1000
        nodes = expand_nodelist(nodelist)
        if word in COUNTED and nodes:
            out.append(EndedJob(number, user, word, nodes))
    return out


def count_by_node(jobs: Sequence[EndedJob]) -> list[NodeFailures]:
    """Return each node of JOBS, the least explained by chance first.

    The share of dead jobs among all is taken for each node's, and jobs for independent of each
    other. So a bad program that runs everywhere makes no node odd.
    """
    ended: Counter[str] = Counter()
    died: dict[str, list[str]] = {}
    for job in jobs:
        ended.update(job.nodes)
        if job.state in DIED:
            for node in job.nodes:
                died.setdefault(node, []).append(job.number)
    all_jobs = sum(ended.values())
    all_died = sum(map(len, died.values()))
    out = []
    for node, count in ended.items():
        own = tuple(died.get(node, ()))
        # Without the node itself: a node that kills all its jobs must not raise what is usual
        others = all_jobs - count
        usual = (all_died - len(own) + 1) / (others + 2)
        chance = min(1.0, _probability(count, len(own), usual) * len(ended))
        out.append(NodeFailures(node, count, own, chance))
    return sorted(out, key=lambda one: (one.chance, -len(one.died), one.node))


def _probability(count: int, least: int, share: float) -> float:
    """Return how probable LEAST or more of COUNT are, each with the probability SHARE."""
    if least <= 0:
        return 1.0
    share = min(max(share, 1e-12), 1 - 1e-12)
    terms = (
        math.exp(
            math.lgamma(count + 1)
            - math.lgamma(k + 1)
            - math.lgamma(count - k + 1)
            + k * math.log(share)
            + (count - k) * math.log1p(-share)
        )
        for k in range(least, count + 1)
    )
    return min(1.0, math.fsum(terms))
