"""Which of many nodes are slow, in a few rounds: groups of nodes run one collective each, slow
groups are halved. Pure.

With up to three bad nodes of n it takes about log2(n) rounds, of jobs that run beside each other on
nodes of their own; pairs take n(n-1)/2 jobs. Each later round has a control: a group as large of
nodes that are known to be good, at the same time, so that a round in which all suspects are slow is
not its own measure. With fewer than LEAST nodes the first groups could all hold a bad one, and
pairs are as quick.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from hpcstack_smoke.collectives.pairs import SLOW

FIRST_GROUPS, LEAST, MOST_BAD, MANY_ODD = (
    8,
    16,
    0.5,
    6,
)  # with at most three bad nodes most of the first groups are clean
Group = tuple[str, ...]


@dataclass(frozen=True)
class Measured:
    """What one group's job found: GB/s (None: it gave none), why it failed, whether it stayed in
    one NVLink domain.

    `lost`: the job left no report, which says nothing of its nodes.
    """

    busbw: float | None = None
    failed: str = ""
    together: bool = False
    lost: bool = False


@dataclass
class Bisection:
    """`suspects` are groups that may hold a bad node; `good` nodes were in a group that was as fast
    as others.
    """

    nodes: tuple[str, ...]
    suspects: list[Group] = field(default_factory=list)
    good: list[str] = field(default_factory=list)
    odd: dict[str, str] = field(default_factory=dict)
    rounds: int = 0
    control: Group = ()
    unsure: str = ""
    untold: list[str] = field(default_factory=list)

    def next_groups(self) -> list[Group]:
        """The groups of the next round; none where all is known.

        Suspects that are alone get a good node each.
        """
        if not self.rounds:
            return split_evenly(self.nodes, min(FIRST_GROUPS, len(self.nodes) // 2))
        if not self.suspects:
            return []
        halves = [
            half
            for group in self.suspects
            for half in (split_evenly(group, 2) if len(group) > 1 else [group])
        ]
        size = max(2, max(map(len, halves)))
        partners = iter(self.good)
        groups = [
            half if len(half) > 1 else (*half, partner)
            for half in halves
            if len(half) > 1 or (partner := next(partners, ""))
        ]
        rest = list(partners)
        self.control = tuple(rest[:size]) if len(rest) >= 2 else ()
        if not self.control or len(groups) < len(halves):
            self.unsure = (
                f"too few good nodes ({len(self.good)}) to tell "
                f"{', '.join(n for g in halves for n in g)} apart"
            )
            if len(groups) < len(halves) or not self.good:
                return []
        return [*groups, *([self.control] if self.control else [])]

    def learn(self, found: dict[Group, Measured]) -> None:
        """What a round found. Every group of `next_groups` is in FOUND."""
        bad = slow_groups(found, self.control)
        if not self.rounds and len(bad) > len(found) * MOST_BAD:
            self.unsure = (
                f"{len(bad)} of {len(found)} groups are slow or failed: more than a few bad nodes"
            )
        self.rounds += 1
        known = set(self.good)
        self.suspects = []
        alone = alone_of_their_kind(found) if not self.control else set()
        for group, one in found.items():
            unknown = tuple(node for node in group if node not in known)
            if one.lost or (group in alone and group not in bad):
                self.untold += unknown
            elif group not in bad:
                self.good += [node for node in unknown if node not in self.odd]
            elif len(unknown) > 1:
                self.suspects.append(unknown)
            elif unknown:
                self.odd[unknown[0]] = f"hpcstack sweep: {explain_odd(one, found, self.control)}"
        if self.untold:
            self.unsure = "jobs that left no report, or nothing to compare a group with"
        if len(self.odd) > MANY_ODD:
            self.unsure = (
                f"{len(self.odd)} odd nodes are more than a few: are they another kind of node?"
            )


def split_evenly(nodes: Group, count: int) -> list[Group]:
    """NODES in COUNT parts of nearly one size."""
    count = max(1, count)
    bounds = [len(nodes) * place // count for place in range(count + 1)]
    return [nodes[a:b] for a, b in itertools.pairwise(bounds) if b > a]


def slow_groups(found: dict[Group, Measured], control: Group) -> set[Group]:
    """Groups that failed or are slow against the CONTROL, else against the fastest of those that
    were as they.
    """
    bad = {
        group for group, one in found.items() if not one.lost and (one.failed or one.busbw is None)
    }
    for together in (True, False):
        told = [(group, one) for group, one in found.items() if group not in bad and not one.lost]
        values = {
            group: one.busbw
            for group, one in told
            if one.busbw is not None and one.together == together
        }
        if not values:
            continue
        measure = values[control] if control in values else max(values.values())
        bad |= {group for group, value in values.items() if value < SLOW * measure}
    return bad


def alone_of_their_kind(found: dict[Group, Measured]) -> set[Group]:
    """Groups that no other is like: the only one within an NVLink domain, or the only one that
    crosses the network.
    """
    kinds = {
        together: [
            group for group, one in found.items() if one.together == together and not one.lost
        ]
        for together in (True, False)
    }
    return {groups[0] for groups in kinds.values() if len(groups) == 1}


def explain_odd(one: Measured, found: dict[Group, Measured], control: Group) -> str:
    """Why a node is odd, for Slurm's drain reason."""
    if one.failed:
        return one.failed[:150]
    measure = found.get(control, Measured()).busbw
    others = f", a control of good nodes {measure:.3g}" if measure else ""
    return f"with a good node {one.busbw or 0:.3g} GB/s{others} (limit {SLOW:g})"
