"""Find the rank of a hanging job that has left the order of operations of all others like it.

Ranks of one part of a program call the same operations in the same order, one further than the
other. So where ranks wait for each other in a ring, the one whose order fits to no other's is at
fault: it has left an operation out, or done another one. Pure.

Tested in tests/unit/launch/test_wait_graph.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from hpcstack.launch.flights import NEWEST, Operation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcstack.launch.job_flights import Item, JobFlights


class Odd(NamedTuple):
    """A rank whose order is its own alone: what it did, and what others do there, if known."""

    rank: int
    own: Operation
    usual: Operation | None


def find_odd_order(job: JobFlights, ring: Sequence[int]) -> Odd | None:
    """Return the rank of RING whose order fits to no other's; None where each fits to one.

    Ranks of one part of the program call the same operations in the same order, one further than
    the other. The rank whose order fits to no other rank's, in the whole job, is the odd one.
    """
    longest: dict[int, int] = {}  # {rank: how far it agrees with another}
    for rank in ring:
        order = job.orders[rank]
        others = _list_orders_of_others(job, rank)
        agreements = [compare_orders(order, other) for other in others]
        if order and agreements and not any(one.fits for one in agreements):
            longest[rank] = max(one.length for one in agreements)
    if not longest:
        return None
    # Of several, the one that agreed with another for longest has left the order by itself
    rank = max(longest, key=lambda one: (longest[one], -one))
    if len(ring) > 1 and list(longest.values()) == [longest[rank]] * len(ring):
        return None  # none is odder than the others
    return _describe_odd(job, rank)


def _list_orders_of_others(job: JobFlights, rank: int) -> dict[tuple[Item, ...], int]:
    """Return {an order of operations: a rank that has it} of the ranks like RANK.

    These are in the same stage of a pipeline, if the groups tell; else all others are.
    """
    out: dict[tuple[Item, ...], int] = {}
    alike = [one for one in job.ranks_by_stage[job.stages[rank]] if one != rank]
    for other in alike or [one for one in job.flights if one != rank]:
        out.setdefault(job.orders[other], other)
    return out


def _describe_odd(job: JobFlights, rank: int) -> Odd:
    """Return where the odd RANK has left the order of the rank that is most like it.

    That is the one with most operations in common, whenever they were.
    """
    order = job.orders[rank]
    owners = _list_orders_of_others(job, rank)
    own_items = set(order)

    def measure_likeness(other: tuple[Item, ...]) -> tuple[float, int]:
        common = own_items & set(other)
        alike = len(common) / len(own_items | set(other))
        return alike, compare_orders(order, other).length

    model = max(owners, key=measure_likeness)
    other = owners[model]
    agreement = compare_orders(order, model)
    own = job.flights[rank].operations
    theirs = job.flights[other].operations
    usual = theirs[agreement.other_end] if agreement.other_end < len(theirs) else None
    if usual is not None and usual.peer is not None:
        usual = replace(usual, peer=usual.peer - other + rank)  # as far from the odd one
    return Odd(rank, own[min(agreement.end, len(own) - 1)], usual)


class Agreement(NamedTuple):
    """How far two orders agree: whether one goes on from the other's end, how many items they have
    in common, and where in each the first one is that they have not.
    """

    fits: bool
    length: int
    end: int
    other_end: int


def compare_orders(one: Sequence[Item], other: Sequence[Item]) -> Agreement:
    """Return how far ONE and OTHER agree.

    They are compared from their beginnings; but a recorder that is full has forgotten its oldest,
    and then from the first item that both have, if that is in the older half of both.
    """
    nothing = Agreement(fits=False, length=0, end=0, other_end=0)
    if not one or not other:
        return nothing
    begin, other_begin = 0, 0
    if max(len(one), len(other)) >= NEWEST:
        if other[0] in one:
            begin = one.index(other[0])
        elif one[0] in other:
            other_begin = other.index(one[0])
    if begin > len(one) / 2 or other_begin > len(other) / 2:
        return nothing

    most = min(len(one) - begin, len(other) - other_begin)
    length = 0
    while length < most and one[begin + length] == other[other_begin + length]:
        length += 1
    return Agreement(length == most, length, begin + length, other_begin + length)
