"""What the flight recorders of a job's ranks tell together: groups, members, and who waits for whom.

Pure. wait_graph.py finds the root in it, program_order.py a rank that has left the others' order.

Tested in tests/unit/launch/test_wait_graph.py.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpcstack.launch.flights import NEWEST, Flight, Key, Operation, ProcessGroup

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Operations whose sizes are the same on every rank; those of others may differ
SIZES_AGREE = ("all_reduce", "allreduce", "broadcast", "reduce")
# The purpose of a group that the program gives none
NO_PURPOSE = ("", "undefined")
# A collective of a group, by its number
Meeting = tuple[Key, int]
# An operation: (purpose of the group, name, number of the collective or distance of the peer)
Item = tuple[str, str, int]
# A rank's place in each pipeline that it is in: (purpose of the group, number of the stage)
Stage = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Seen:
    """What else is known of the ranks, by their stacks.

    `world` is how many there should be, 0 for unknown. `hosts` are {rank: its node}, `doing` are
    {rank: what its stack says}. `elsewhere` are ranks whose stack is in no collective.
    """

    world: int = 0
    hosts: Mapping[int, str] = field(default_factory=dict)
    doing: Mapping[int, str] = field(default_factory=dict)
    stopped: frozenset[int] = frozenset()
    absent: frozenset[int] = frozenset()
    elsewhere: frozenset[int] = frozenset()


class JobFlights:
    """The flights of a job, and what each rank waits for by its own."""

    def __init__(self, flights: Mapping[int, Flight], seen: Seen) -> None:
        self.flights = flights
        self.seen = seen
        # {rank: {group's key: its last number there}}
        self.reached: dict[int, dict[Key, int]] = {}
        self.entered: dict[Meeting, dict[int, Operation]] = defaultdict(dict)
        self._missing: dict[Meeting, tuple[int, ...]] = {}
        self._different: dict[Meeting, tuple[int, ...]] = {}
        # {(a group's purpose, number): what the ranks of all such groups were in}
        self.kinds: dict[tuple[str, int], list[tuple[str, str]]] = defaultdict(list)
        self.groups: dict[Key, ProcessGroup] = {}
        users: dict[Key, set[int]] = defaultdict(set)
        for rank, flight in flights.items():
            last: dict[Key, int] = {}
            for group in flight.groups:
                self.groups[group.key] = group
            for one in flight.operations:
                key = one.group.key
                self.groups[key] = one.group
                users[key].add(rank)
                if not one.is_between_two:
                    last[key] = max(last.get(key, 0), one.number)
                    self.entered[key, one.number][rank] = one
                    self.kinds[one.group.purpose, one.number].append(_describe_kind(one))
            self.reached[rank] = last

        # Without a word of the recorder's, whoever has used a group is a member
        everyone = self._list_everyone()
        self.everyone = everyone
        self.members: dict[Key, tuple[int, ...]] = {}
        for key, group in self.groups.items():
            known = group.members or tuple(sorted(users[key]))
            if group.purpose == "default_pg" and not group.members:
                known = everyone
            self.members[key] = known

        self.orders = {rank: tuple(self._list_order(rank)) for rank in flights}
        pipelines = {
            one.group.purpose
            for flight in flights.values()
            for one in flight.operations
            if one.is_between_two and one.group.purpose != "default_pg"
        }
        self.stages = {rank: self._find_stage(rank, pipelines) for rank in flights}
        self.ranks_by_stage: dict[Stage, list[int]] = defaultdict(list)
        for rank, stage in self.stages.items():
            self.ranks_by_stage[stage].append(rank)

    def _list_everyone(self) -> tuple[int, ...]:
        """Return all ranks of the job that anything speaks of."""
        named = {rank for group in self.groups.values() for rank in group.members}
        named |= set(self.flights) | set(self.seen.hosts) | set(self.seen.absent)
        return tuple(sorted(named | set(range(self.seen.world))))

    def _list_order(self, rank: int) -> list[Item]:
        """Return RANK's operations in the form that ranks of one part of a program have alike."""
        out = []
        for one in self.flights[rank].operations:
            purpose = one.group.purpose
            if purpose in NO_PURPOSE:
                purpose = one.group.name
            number = one.number
            if one.is_between_two:
                number = 0 if one.peer is None else one.peer - rank
            out.append((purpose, one.name, number))
        return out

    def _find_stage(self, rank: int, pipelines: set[str]) -> Stage:
        """Return RANK's place in each of its groups whose purpose is one of PIPELINES."""
        out = []
        for group in self.flights[rank].groups:
            if group.purpose in pipelines and rank in group.members:
                out.append((group.purpose, group.members.index(rank)))
        return tuple(sorted(out))

    def list_unseen(self) -> list[int]:
        """Return ranks of the job that have left no record."""
        return [rank for rank in self.everyone if rank not in self.flights]

    def list_waiting(self, rank: int) -> list[Operation]:
        """Return the operations of RANK that are not over: the oldest of each group and peer."""
        out: dict[tuple[Key, str, int | None], Operation] = {}
        flight = self.flights.get(rank)
        for one in flight.operations if flight else ():
            if not one.over:
                name = one.name if one.is_between_two else ""
                out.setdefault((one.group.key, name, one.peer), one)
        return list(out.values())

    def find_missing(self, one: Operation) -> tuple[int, ...]:
        """Return the ranks that keep the collective ONE from ending.

        These have not come to it, or are in another operation. Ranks that left no record are named
        only where all others have come.
        """
        meeting = find_meeting(one)
        if meeting not in self._missing:
            self._missing[meeting] = self._list_missing(one)
        return self._missing[meeting]

    def _list_missing(self, one: Operation) -> tuple[int, ...]:
        key = one.group.key
        behind = tuple(
            member
            for member in self.members[key]
            if member in self.flights and self.reached[member].get(key, 0) < one.number
        )
        found = behind + self.find_different(one)
        if found:
            return found
        return tuple(member for member in self.members[key] if member not in self.flights)

    def find_different(self, one: Operation) -> tuple[int, ...]:
        """Return the ranks that have ONE's number in its group, and are in another operation.

        It is another one by its name, or by its sizes where these must agree. Most count: of the
        group, or, where it has no majority, of all groups with the same purpose. Without a majority
        nobody is different. Of a send or receive nobody is.
        """
        if one.is_between_two:
            return ()
        meeting = find_meeting(one)
        if meeting not in self._different:
            self._different[meeting] = self._list_different(one)
        return self._different[meeting]

    def _list_different(self, one: Operation) -> tuple[int, ...]:
        there = self.entered[find_meeting(one)]
        kinds = {rank: _describe_kind(other) for rank, other in there.items()}
        if len(set(kinds.values())) < 2:
            return ()
        usual = _find_majority(kinds.values())
        if usual is None and one.group.purpose not in NO_PURPOSE:
            usual = _find_majority(self.kinds[one.group.purpose, one.number])
        return tuple(rank for rank, kind in kinds.items() if usual is not None and kind != usual)

    def misses_peer(self, rank: int, one: Operation) -> bool:
        """Return whether RANK's send or receive ONE has no counterpart on its peer yet."""
        if one.peer is None:
            return False
        flight = self.flights.get(one.peer)
        if flight is None:
            return True

        wanted = "recv" if one.name == "send" else "send"
        theirs = [
            other
            for other in flight.operations
            if other.name == wanted and other.peer == rank and other.group.key == one.group.key
        ]
        if any(not other.over for other in theirs):
            return False  # the data is on its way

        # Both write down all of them in one order: the nth send is for the nth receive. Where a
        # recorder has forgotten its oldest, nothing can be counted
        own = self.flights[rank].operations
        if max(len(own), len(flight.operations)) < NEWEST:
            alike = [
                other
                for other in own
                if other.name == one.name
                and other.peer == one.peer
                and other.group.key == one.group.key
            ]
            place = next(place for place, other in enumerate(alike) if other is one)
            return len(theirs) <= place
        return True

    def name_rank(self, rank: int) -> str:
        """Return `rank 37 (node5, pp 2, tp 1)`: where it is, and its place in each group of its own."""
        about = [self.seen.hosts[rank]] if rank in self.seen.hosts else []
        for key, group in sorted(self.groups.items(), key=lambda item: str(item[0])):
            members = self.members[key]
            is_part = 1 < len(members) < len(self.everyone)
            if is_part and group.members and rank in members and group.purpose not in NO_PURPOSE:
                about.append(f"{group.purpose.removeprefix('mesh_')} {members.index(rank)}")
        return f"rank {rank} ({', '.join(dict.fromkeys(about))})" if about else f"rank {rank}"


def find_meeting(one: Operation) -> Meeting:
    """Return which collective ONE is."""
    return one.group.key, one.number


def _find_majority(kinds: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
    """Return what more of KINDS are than anything else; None where none is."""
    counted = Counter(kinds).most_common(2)
    if not counted or (len(counted) == 2 and counted[0][1] == counted[1][1]):
        return None
    return counted[0][0]


def _describe_kind(one: Operation) -> tuple[str, str]:
    sizes = one.sizes if one.name.removeprefix("_") in SIZES_AGREE else ""
    return one.name, sizes
