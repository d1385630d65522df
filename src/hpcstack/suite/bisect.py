"""Find which of many nodes are slow, in a few rounds of groups that are halved. Pure.

In each round groups of nodes run a collective, each group for itself; slow groups are halved for
the next round. With up to three bad nodes of n that takes about log2(n) rounds, of jobs that run
beside each other; pairs take n(n-1)/2 jobs.

Each round but the first has a control: a group, as large, of nodes that are known to be good. It
runs at the same time, so that a round in which all suspects are slow is not measured by itself.
With fewer than LEAST nodes each of the first groups could have a bad one, and pairs are as quick.

Tested in tests/unit/suite/test_sweep.py.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from hpcstack_smoke.collectives.pairs import SLOW

FIRST_GROUPS = 8  # of the first round: with three bad nodes or fewer, most of them are clean
LEAST = 16  # nodes
MOST_BAD = 0.5  # share of the first groups that may be bad
MANY_ODD = 6  # with more odd nodes these may rather be of another kind
Group = tuple[str, ...]


@dataclass(frozen=True)
class Measured:
    """What the job of one group found."""

    busbw: float | None = None  # GB/s; None: it measured none
    failed: str = ""  # why it failed
    together: bool = False  # its nodes are in one NVLink domain
    lost: bool = False  # it left no report, which says nothing of its nodes


@dataclass
class Bisection:
    """What is known of the nodes after some rounds."""

    nodes: tuple[str, ...]
    suspects: list[Group] = field(default_factory=list)  # groups that may have a bad node
    good: list[str] = field(default_factory=list)  # nodes of groups that were as fast as others
    odd: dict[str, str] = field(default_factory=dict)  # bad nodes, and why
    rounds: int = 0
    control: Group = ()  # of the last round that was planned; empty: it has none
    unsure: str = ""  # why the answer is not sure
    untold: list[str] = field(default_factory=list)  # nodes of which nothing is known

    def next_groups(self) -> list[Group]:
        """Plan the next round. Return its groups, of which the last may be the control.

        There are none where all is known, or where too few nodes are known to be good. A suspect
        node that is alone gets a good one as its partner.
        """
        if not self.rounds:
            return split_evenly(self.nodes, min(FIRST_GROUPS, len(self.nodes) // 2))
        if not self.suspects:
            return []

        halves: list[Group] = []
        for group in self.suspects:
            halves += split_evenly(group, 2) if len(group) > 1 else [group]
        partners = iter(self.good)
        groups: list[Group] = []
        for half in halves:
            if len(half) > 1:
                groups.append(half)
                continue
            partner = next(partners, "")
            if partner:
                groups.append((*half, partner))

        size = max(2, max(map(len, halves)))
        rest = list(partners)
        self.control = tuple(rest[:size]) if len(rest) >= 2 else ()
        without_partner = len(groups) < len(halves)
        if not self.control or without_partner:
            names = ", ".join(node for half in halves for node in half)
            self.unsure = f"too few good nodes ({len(self.good)}) to tell {names} apart"
        if without_partner or not self.good:
            return []
        if self.control:
            groups.append(self.control)
        return groups

    def learn(self, found: dict[Group, Measured]) -> None:
        """Learn what a round FOUND, which has every group of `next_groups`."""
        bad = find_slow_groups(found, self.control)
        if not self.rounds and len(bad) > len(found) * MOST_BAD:
            self.unsure = (
                f"{len(bad)} of {len(found)} groups are slow or failed: more than a few bad nodes"
            )
        self.rounds += 1

        known = set(self.good)
        self.suspects = []
        # without a control, a group that no other is like has nothing to be compared with
        alone = set() if self.control else find_single_kinds(found)
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
    """Return NODES in COUNT parts, whose sizes differ by one at most."""
    count = max(1, count)
    bounds = [len(nodes) * place // count for place in range(count + 1)]
    return [nodes[a:b] for a, b in itertools.pairwise(bounds) if b > a]


def find_slow_groups(found: dict[Group, Measured], control: Group) -> set[Group]:
    """Return the groups that failed, measured nothing, or are slow.

    Those within an NVLink domain and those that cross the network are compared apart: with the
    CONTROL if it is of that class, else with the fastest of the class.
    """
    here = {group: one for group, one in found.items() if not one.lost}
    bad = {group for group, one in here.items() if one.failed or one.busbw is None}
    for together in (True, False):
        values = {}
        for group, one in here.items():
            if one.busbw is not None and group not in bad and one.together == together:
                values[group] = one.busbw
        if not values:
            continue
        measure = values[control] if control in values else max(values.values())
        bad |= {group for group, value in values.items() if value < SLOW * measure}
    return bad


def find_single_kinds(found: dict[Group, Measured]) -> set[Group]:
    """Return the groups that no other is like.

    These are the only one within an NVLink domain, and the only one that crosses the network.
    """
    out = set()
    for together in (True, False):
        alike = [group for group, one in found.items() if one.together == together and not one.lost]
        if len(alike) == 1:
            out.add(alike[0])
    return out


def explain_odd(one: Measured, found: dict[Group, Measured], control: Group) -> str:
    """Return why a node is odd, from what its last group measured (ONE), for a drain reason."""
    if one.failed:
        return one.failed[:150]
    measure = found.get(control, Measured()).busbw
    others = f", a control of good nodes {measure:.3g}" if measure else ""
    return f"with a good node {one.busbw or 0:.3g} GB/s{others} (limit {SLOW:g})"
