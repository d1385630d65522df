"""Find out who a hanging job waits for: from rank to group to the member that is not there. Pure.

Each rank's flight recorder says which operations it has begun and not ended. A rank that is in a
collective waits for every member of the group that has not come to it; one in a receive waits for
its peer. These waits are a graph. Whoever others wait for, and who waits for nobody, is the root:
all others are its victims. Ranks that wait for each other in a ring are told apart by the order of
their operations: the odd one has left something out, or done something else.

What stacks say of a rank (stopped, not there) joins in. What no recorder and no stack tells is
UNKNOWN, and never well.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from hpcstack.core.errors import format_count
from hpcstack.launch.hang import format_ranges
from hpcstack.launch.job_flights import JobFlights, Meeting, Seen, find_meeting
from hpcstack.launch.program_order import Odd, find_odd_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hpcstack.launch.flights import Flight, Operation

MOST_LINES = 12
# What is to be done where a rank has left no record
ASK_AGAIN = (
    "set TORCH_FR_BUFFER_SIZE=2000 and TORCH_FR_DUMP_TEMP_FILE to a shared folder, or look at the "
    "stacks of that rank: hpcstack hang JOB --all"
)


class Kind(Enum):
    """What is wrong with the root of a hang. The order is that of certainty."""

    ABSENT = "absent"  # its process is gone
    STOPPED = "stopped"  # by a signal
    DIFFERENT = "different"  # it is in another operation than the others of its group
    BEHIND = "behind"  # it has not come yet, and waits for nobody
    SKIPPED = "skipped"  # it has gone on without an operation, or done another one
    RING = "ring"  # ranks wait for each other, and none is odd
    TRANSFER = "transfer"  # all have come, and the data does not
    UNKNOWN = "unknown"  # it has left no record


@dataclass(frozen=True)
class HangRoot:
    """What a hang comes from: RANKS, what is wrong, in words, and how many ranks wait for them."""

    kind: Kind
    ranks: tuple[int, ...]
    text: str
    waiting: int


@dataclass(frozen=True)
class Diagnosis:
    """Who a job waits for.

    `roots` are what the hang comes from, the most certain and the most waited for first. `unknown`
    says in words what could not be seen. `waiting` is how many ranks wait at all.
    """

    roots: tuple[HangRoot, ...]
    unknown: tuple[str, ...]
    waiting: int

    @property
    def well(self) -> bool:
        """Whether every rank of every group was seen and none waits."""
        return not self.roots and not self.unknown and not self.waiting


class WaitGraph:
    """Who waits for whom: from a rank to a collective to the ranks that it lacks.

    `waits` are {node: {what it waits for: the operation}}, `awaited` the same from the other end.
    """

    def __init__(self) -> None:
        self.waits: dict[int | Meeting, dict[int | Meeting, Operation]] = defaultdict(dict)
        self.awaited: dict[int | Meeting, dict[int | Meeting, Operation]] = defaultdict(dict)

    def add(self, waiter: int | Meeting, other: int | Meeting, one: Operation) -> None:
        """Add that WAITER waits for OTHER in the operation ONE."""
        self.waits[waiter][other] = one
        self.awaited[other][waiter] = one

    def list_rings(self) -> list[list[int | Meeting]]:
        """Return the nodes, parted so that those who wait for each other are together.

        These are the graph's strongly connected components (Kosaraju's way: two searches in depth).
        """
        finished: list[int | Meeting] = []
        visited: set[int | Meeting] = set()
        for first in dict.fromkeys([*self.waits, *self.awaited]):
            if first in visited:
                continue
            visited.add(first)
            path = [(first, iter(self.waits.get(first, ())))]
            while path:
                node, others = path[-1]
                other = next((one for one in others if one not in visited), None)
                if other is None:
                    finished.append(node)
                    path.pop()
                else:
                    visited.add(other)
                    path.append((other, iter(self.waits.get(other, ()))))

        out = []
        placed: set[int | Meeting] = set()
        for first in reversed(finished):
            if first not in placed:
                ring = self._collect([first], placed)
                placed |= ring
                out.append(list(ring))
        return out

    def _collect(
        self, first: Iterable[int | Meeting], leave_out: set[int | Meeting]
    ) -> set[int | Meeting]:
        """Return FIRST and all who wait for them, directly or not, without those to LEAVE_OUT."""
        found: set[int | Meeting] = set()
        waiting = list(first)
        while waiting:
            node = waiting.pop()
            if node not in found and node not in leave_out:
                found.add(node)
                waiting += self.awaited.get(node, ())
        return found

    def count_victims(self, ranks: Iterable[int]) -> int:
        """Return how many other ranks wait for RANKS, directly or not."""
        own = set(ranks)
        found = self._collect(own, set())
        return sum(isinstance(node, int) and node not in own for node in found)


def diagnose_hang(flights: Mapping[int, Flight], seen: Seen | None = None) -> Diagnosis:
    """Return who the job of FLIGHTS ({rank: its flight}) waits for; SEEN is what stacks say."""
    job = JobFlights(flights, seen or Seen())
    graph = WaitGraph()
    held: dict[int, list[Operation]] = defaultdict(list)  # operations that all have come to
    for rank in flights:
        for one in job.list_waiting(rank):
            if not _add_wait(job, graph, rank, one):
                held[rank].append(one)

    roots = _find_roots(job, graph, held)
    roots.sort(key=lambda root: (list(Kind).index(root.kind), -root.waiting))
    waiting = sum(bool(job.list_waiting(rank)) for rank in flights)
    unknown = _list_unknown(job, roots)
    if waiting and not roots:
        unknown.append(f"{_wait(waiting)}, and the records do not tell for whom: {ASK_AGAIN}")
    return Diagnosis(tuple(roots[:MOST_LINES]), tuple(unknown), waiting)


def _add_wait(job: JobFlights, graph: WaitGraph, rank: int, one: Operation) -> bool:
    """Add to GRAPH what RANK waits for in ONE; return whether anybody keeps ONE from ending."""
    if one.is_between_two:
        if job.misses_peer(rank, one) and one.peer is not None:
            graph.add(rank, one.peer, one)
            return True
        return False

    missing = job.find_missing(one)
    if rank in missing:
        # It is this one that the others wait for; itself it waits for those who have not come
        for other in missing:
            if other != rank and other not in job.find_different(one):
                graph.add(rank, other, one)
        return True
    meeting = find_meeting(one)
    if missing:
        graph.add(rank, meeting, one)
    if meeting not in graph.waits:
        for other in missing:
            graph.add(meeting, other, one)
    return bool(missing)


def _find_roots(
    job: JobFlights, graph: WaitGraph, held: Mapping[int, list[Operation]]
) -> list[HangRoot]:
    """Return the roots of GRAPH, and of the operations in HELD, which all have come to."""
    out: list[HangRoot] = []
    for ring in graph.list_rings():
        inside = set(ring)
        if any(other not in inside for node in ring for other in graph.waits.get(node, ())):
            continue
        ranks = sorted(node for node in ring if isinstance(node, int))
        if len(ranks) > 1:
            out.append(_name_ring(job, ranks, graph))
        elif graph.awaited.get(ranks[0]) and not _is_held(job, graph, ranks[0], held):
            out.append(_name_rank_awaited(job, ranks[0], graph))

    # An operation that all have come to, and that nobody outside of it holds up
    named: set[tuple[Meeting, str, int | None]] = set()
    for rank, operations in held.items():
        if rank in graph.waits:
            continue
        for one in operations:
            what = (find_meeting(one), one.name, one.peer)
            if what not in named:
                named.add(what)
                out.append(_name_transfer(job, rank, one, graph, held))
    return _join_alike(out)


def _is_held(
    job: JobFlights, graph: WaitGraph, rank: int, held: Mapping[int, list[Operation]]
) -> bool:
    """Whether RANK, for whom others wait, cannot come: it is in an operation that does not end.

    An operation that was begun in the background, as on a stream of its own, holds nobody. So it is
    where the rank's stack is in no collective, and no other member of the operation is awaited.
    """
    operations = held.get(rank, [])
    if rank not in job.seen.elsewhere:
        return bool(operations)
    members = {member for one in operations for member in job.members[one.group.key]}
    return any(graph.awaited.get(member) for member in members - {rank})


def _name_rank_awaited(job: JobFlights, rank: int, graph: WaitGraph) -> HangRoot:
    """Return the root RANK, which others wait for in GRAPH, and which waits for nobody."""
    by = graph.awaited[rank]
    victims = graph.count_victims([rank])
    # A collective says more than a send or receive does
    node = min(by, key=lambda other: by[other].is_between_two)
    one = by[node]
    waiter = node if isinstance(node, int) else _find_waiter(job, node, rank)
    wait = f"{_wait(victims)} for it, directly or not"
    who = job.name_rank(rank)
    if rank in job.seen.absent:
        text = f"{who} is not there, and rank {waiter} is in {one}; {wait}"
        return HangRoot(Kind.ABSENT, (rank,), text, victims)
    if rank in job.seen.stopped:
        text = f"{who} is stopped by a signal, and rank {waiter} is in {one}; {wait}"
        return HangRoot(Kind.STOPPED, (rank,), text, victims)

    missed = str(one)
    if one.is_between_two:
        missed = f"recv from rank {waiter}" if one.name == "send" else f"send to rank {waiter}"
    flight = job.flights.get(rank)
    if flight is None:
        text = f"{who} has left no record, and may not have come to {missed}; {wait}"
        if job.seen.doing.get(rank):
            text += f"; its stack: {job.seen.doing[rank]}"
        return HangRoot(Kind.UNKNOWN, (rank,), f"{text}; {ASK_AGAIN}", victims)

    here = job.entered[find_meeting(one)].get(rank)
    if here is not None and not one.is_between_two:
        own = f"{here.name} of {here.sizes}" if here.name == one.name else str(here)
        theirs = f"{one.name} of {one.sizes}" if here.name == one.name else str(one)
        text = f"{who} is in {own}, where the others of its group are in {theirs}; {wait}"
        return HangRoot(Kind.DIFFERENT, (rank,), text, victims)

    for own_wait in job.list_waiting(rank):
        if rank in job.find_different(own_wait):
            text = (
                f"{who} is still in {own_wait}, with sizes {own_wait.sizes}, where the others of "
                f"its group had something else; {wait}"
            )
            return HangRoot(Kind.DIFFERENT, (rank,), text, victims)

    odd = find_odd_order(job, [rank])
    if odd is not None:
        text = f"{_say_skipped(job, odd)}; it has not come to {missed}; {wait}"
        return HangRoot(Kind.SKIPPED, (rank,), text, victims)

    last = ""
    if flight.operations:
        newest = flight.operations[-1]
        last = f"; its last was {newest}, which is {'over' if newest.over else 'not over'}"
    if job.seen.doing.get(rank):
        last += f"; now it is {job.seen.doing[rank]}"
    return HangRoot(Kind.BEHIND, (rank,), f"{who} has not come to {missed}; {wait}{last}", victims)


def _find_waiter(job: JobFlights, meeting: Meeting, rank: int) -> int:
    """Return the first rank that is in MEETING and waits there for RANK."""
    missing = job.find_missing(next(iter(job.entered[meeting].values())))
    return min(one for one in job.entered[meeting] if one != rank and one not in missing)


def _name_ring(job: JobFlights, ring: Sequence[int], graph: WaitGraph) -> HangRoot:
    """Return the root of RING, ranks that wait for each other: the odd one, if there is one."""
    victims = graph.count_victims(ring)
    others = victims + len(ring) - 1
    stopped = [rank for rank in ring if rank in job.seen.stopped | job.seen.absent]
    if stopped:
        rank = stopped[0]
        kind = Kind.ABSENT if rank in job.seen.absent else Kind.STOPPED
        what = "is not there" if kind is Kind.ABSENT else "is stopped by a signal"
        text = f"{job.name_rank(rank)} {what}; {_wait(others)} for it, directly or not"
        return HangRoot(kind, (rank,), text, others)

    odd = find_odd_order(job, ring)
    if odd is None:
        said = [
            f"rank {rank} in {one}" for rank in ring for one in list(graph.waits[rank].values())[:1]
        ]
        text = (
            f"ranks {format_ranges(ring)} wait for each other ({'; '.join(said[:4])}): they call "
            "their operations in different orders"
        )
        return HangRoot(Kind.RING, tuple(ring), text, victims)

    text = f"{_say_skipped(job, odd)}; {_wait(others)} for it, directly or not"
    return HangRoot(Kind.SKIPPED, (odd.rank,), text, others)


def _say_skipped(job: JobFlights, odd: Odd) -> str:
    """Return in words what ODD has done in place of another operation."""
    text = f"{job.name_rank(odd.rank)} has gone on to {odd.own}"
    if odd.usual is not None:
        text += f", where ranks like it call {_say_alike(odd.usual)}"
    return text


def _say_alike(one: Operation) -> str:
    """Return ONE as another rank of the same part would call it: without whose group it is."""
    if one.is_between_two:
        return str(one)
    purpose = one.group.purpose if one.group.purpose != "undefined" else one.group.name
    place = f" at {one.place}" if one.place else ""
    return f"{one.name} {one.number} of {purpose}{place}"


def _name_transfer(
    job: JobFlights,
    rank: int,
    one: Operation,
    graph: WaitGraph,
    held: Mapping[int, list[Operation]],
) -> HangRoot:
    """Return the root of ONE, which RANK is in and all have come to."""
    inside = (rank, one.peer) if one.peer is not None else job.members[one.group.key]
    members = [member for member in inside if member is not None]
    victims = graph.count_victims(members)
    stopped = [member for member in members if member in job.seen.stopped | job.seen.absent]
    if stopped:
        kind = Kind.ABSENT if stopped[0] in job.seen.absent else Kind.STOPPED
        what = "is not there any more" if kind is Kind.ABSENT else "is stopped by a signal"
        others = victims + len(members) - 1
        text = f"{job.name_rank(stopped[0])} {what}, inside {one}; {_wait(others)} for it"
        return HangRoot(kind, (stopped[0],), text, others)
    if len(members) == 1:
        text = (
            f"{job.name_rank(rank)} waits alone in {one}: no other rank here has come to that group"
        )
        return HangRoot(Kind.UNKNOWN, (rank,), text, victims)

    inside_now = sum(member in held for member in members)
    text = (
        f"all {len(members)} ranks of it are in {one}, {inside_now} of them still: look at the "
        "network, and at a rank that computes before it"
    )
    return HangRoot(Kind.TRANSFER, tuple(members), text, victims)


def _join_alike(roots: list[HangRoot]) -> list[HangRoot]:
    """Return ROOTS, each named once: a rank that is the root of several things is told of once."""
    out: dict[tuple[Kind, tuple[int, ...]], HangRoot] = {}
    for root in roots:
        key = (root.kind, root.ranks)
        if key not in out or root.waiting > out[key].waiting:
            out[key] = root
    certain = [root for root in out.values() if root.kind not in (Kind.TRANSFER, Kind.UNKNOWN)]
    culprits = {rank for root in certain for rank in root.ranks}
    return [root for root in out.values() if root in certain or not culprits & set(root.ranks)]


def _list_unknown(job: JobFlights, roots: Sequence[HangRoot]) -> list[str]:
    """Return, in words, what was not seen."""
    out = []
    told = {rank for root in roots for rank in root.ranks}
    unseen = [rank for rank in job.list_unseen() if rank not in told]
    if unseen:
        who = format_count(len(unseen), "rank")
        out.append(f"{who} left no record ({format_ranges(unseen)}): {ASK_AGAIN}")
    lost = sorted(
        {
            rank
            for rank, flight in job.flights.items()
            for one in flight.operations
            if one.is_between_two and one.peer is None and not one.over
        }
    )
    if lost:
        out.append(
            f"ranks {format_ranges(lost)} send or receive in groups whose members are not recorded"
        )
    return out


def _wait(count: int) -> str:
    return "1 rank waits" if count == 1 else f"{count} ranks wait"


def summarise_diagnosis(flights: Mapping[int, Flight], diagnosis: Diagnosis) -> list[str]:
    """Return lines for people about DIAGNOSIS, which is of FLIGHTS."""
    ranks = format_count(len(flights), "rank")
    lines = [f"flight recorder: {ranks} ({format_ranges(list(flights))}), {diagnosis.waiting} wait"]
    for root in diagnosis.roots:
        word = "UNKNOWN" if root.kind is Kind.UNKNOWN else "ROOT"
        lines.append(f"{word}: {root.text}")
    lines += [f"UNKNOWN: {one}" for one in diagnosis.unknown]
    if diagnosis.well:
        lines.append("flight recorder: every rank of every group was seen, and none waits")
    return lines


def describe_diagnosis(flights: Mapping[int, Flight], diagnosis: Diagnosis) -> dict[str, object]:
    """Return DIAGNOSIS, which is of FLIGHTS, as it stands in a document."""
    roots = [
        {
            "kind": root.kind.value,
            "ranks": list(root.ranks),
            "text": root.text,
            "waiting": root.waiting,
        }
        for root in diagnosis.roots
    ]
    return {
        "ranks": sorted(flights),
        "roots": roots,
        "unknown": list(diagnosis.unknown),
        "waiting": diagnosis.waiting,
    }
