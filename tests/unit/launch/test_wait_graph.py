"""Who a hanging job waits for: real recorders of four ranks (tests/data/flights), and a pipeline with
tensor and data parallelism that is played here, with a fault in each dimension. Real ranks do the
same in tests/integration/test_hanging.py.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstack.launch.flights import NEWEST, Flight, Operation, ProcessGroup, read_flights
from hpcstack.launch.job_flights import Seen
from hpcstack.launch.wait_graph import (
    Kind,
    describe_diagnosis,
    diagnose_hang,
    summarise_diagnosis,
)

DATA = Path(__file__).parents[2] / "data/flights"
FAULTS = ("sleeps", "skips", "other", "nobody", "dies", "stops")


@pytest.mark.parametrize(("fault", "said"), [
    ("sleeps", "rank 3 has not come to all_reduce 4 of group 0 (default_pg), called at /home/user/fr2.py:17; 3 ranks wait for it"),
    ("other", "rank 3 is in broadcast 4 of group 0 (default_pg), called at /home/user/fr2.py:14, where the others of its group are in all_reduce 4"),
    ("skips", "rank 3 is in barrier 5 of group 0 (default_pg), called at /home/user/fr2.py:20, where the others of its group are in all_reduce 5"),
    ("size", "rank 3 is still in all_reduce 4 of group 0 (default_pg), called at /home/user/fr2.py:15, with sizes [[7]], where the others"),
])  # fmt: skip
def test_the_root_by_torchs_own_recorder(fault: str, said: str) -> None:
    flights = read_flights(DATA, f"{fault}-")
    diagnosis = diagnose_hang(flights)
    assert [root.ranks for root in diagnosis.roots] == [(3,)]
    assert diagnosis.roots[0].text.startswith(said)
    assert (diagnosis.roots[0].waiting, diagnosis.well) == (3, False)
    document = describe_diagnosis(flights, diagnosis)
    assert document["ranks"] == [0, 1, 2, 3]


def test_a_group_whose_members_are_not_told_is_unknown() -> None:
    """Gloo's recorder does not say who else should come."""
    diagnosis = diagnose_hang(read_flights(DATA, "sub-"))
    assert diagnosis.roots[0].kind is Kind.UNKNOWN
    assert diagnosis.roots[0].text.startswith("rank 0 waits alone in all_reduce 1 of group 1")
    assert not diagnosis.well


# -- a program that is played


class Step(NamedTuple):
    """One operation of a rank's program."""

    group: ProcessGroup
    name: str
    peer: int | None = None


def make_programs(shape: tuple[int, int, int], steps: int) -> dict[int, list[Step]]:
    """{rank: its operations}: a pipeline forward and back, with tensor and data parallelism."""
    stages, replicas, parts = shape
    out: dict[int, list[Step]] = {}
    for rank in range(stages * replicas * parts):
        stage, rest = divmod(rank, replicas * parts)
        replica, part = divmod(rest, parts)
        pp = tuple(one * replicas * parts + rest for one in range(stages))
        dp = tuple(stage * replicas * parts + one * parts + part for one in range(replicas))
        tp = tuple(stage * replicas * parts + replica * parts + one for one in range(parts))
        pipeline = ProcessGroup(f"p{rest}", "mesh_pp", pp)
        tensor = ProcessGroup(f"t{stage}.{replica}", "mesh_tp", tp)
        data = ProcessGroup(f"d{stage}.{part}", "mesh_dp", dp)
        one_step = []
        if stage:
            one_step.append(Step(pipeline, "recv", pp[stage - 1]))
        one_step.append(Step(tensor, "all_reduce"))
        if stage < stages - 1:
            one_step += [
                Step(pipeline, "send", pp[stage + 1]),
                Step(pipeline, "recv", pp[stage + 1]),
            ]
        one_step.append(Step(tensor, "all_reduce"))
        if stage:
            one_step.append(Step(pipeline, "send", pp[stage - 1]))
        one_step.append(Step(data, "all_reduce"))
        out[rank] = one_step * steps
    return out


def break_program(program: list[Step], fault: str, dimension: str, place: int) -> list[Step]:
    """PROGRAM with FAULT in place of the operation of DIMENSION that comes next from PLACE on."""
    at = next(n for n, one in enumerate(program) if n >= place and dimension in one.group.purpose)
    before, step, after = program[:at], program[at], program[at + 1 :]
    if fault == "skips":
        return before + after
    if fault == "other":
        return [*before, step._replace(name="broadcast", peer=None), *after]
    if fault == "nobody":
        members = step.group.members
        wrong = next(one for one in members if one != step.peer) if step.peer else members[-1]
        return [*before, Step(step.group, "send", wrong)]
    return before


class Player:
    """Runs the programs of all ranks until nothing moves any more."""

    def __init__(self, programs: dict[int, list[Step]]) -> None:
        self.programs = programs
        self.done: dict[int, list[Operation]] = {rank: [] for rank in programs}

    def play(self) -> dict[int, Flight]:
        moved = True
        while moved:
            moved = sum(self.move(rank) for rank in self.programs) > 0
        groups = {
            rank: tuple(dict.fromkeys(step.group for step in program))
            for rank, program in self.programs.items()
        }
        return {rank: Flight(groups[rank], tuple(rows)) for rank, rows in self.done.items()}

    def move(self, rank: int) -> bool:
        rows = self.done[rank]
        if rows and not rows[-1].over:
            if not self.is_met(rank, rows[-1]):
                return False
            rows[-1] = replace(rows[-1], over=True)
            return True
        if len(rows) == len(self.programs[rank]):
            return False
        step = self.programs[rank][len(rows)]
        number = 0
        if step.peer is None:
            number = 1 + sum(one.group == step.group and one.peer is None for one in rows)
        rows.append(Operation(step.group, number, step.name, "[[8]]", over=False, peer=step.peer))
        return True

    def is_met(self, rank: int, own: Operation) -> bool:
        if own.peer is not None:
            wanted = "recv" if own.name == "send" else "send"
            before = [
                one for one in self.done[rank] if (one.name, one.peer) == (own.name, own.peer)
            ]
            there = [one for one in self.done[own.peer] if (one.name, one.peer) == (wanted, rank)]
            return len(there) >= len(before)
        for member in own.group.members:
            there = [one for one in self.done[member] if one.group == own.group]
            if not any((one.number, one.name) == (own.number, own.name) for one in there):
                return False
        return True


def diagnose_fault(
    shape: tuple[int, int, int], fault: str, dimension: str, odd: int, place: int, seen: bool
) -> tuple[dict[int, Flight], list[tuple[int, ...]]]:
    """(flights, the ranks of each root) of a job of SHAPE whose rank ODD does FAULT."""
    programs = make_programs(shape, 4)
    programs[odd] = break_program(programs[odd], fault, dimension, place)
    flights = Player(programs).play()
    about = Seen(world=len(programs))
    if fault in ("dies", "stops"):
        del flights[odd]
        if seen:
            gone, held = (frozenset({odd}), frozenset[int]())
            if fault == "stops":
                gone, held = held, gone
            about = Seen(world=len(programs), absent=gone, stopped=held)
    diagnosis = diagnose_hang(flights, about)
    assert not diagnosis.well
    lines = summarise_diagnosis(flights, diagnosis)
    assert lines[1].startswith(("ROOT: ", "UNKNOWN: "))
    return flights, [root.ranks for root in diagnosis.roots]


@pytest.mark.parametrize("dimension", ["pp", "dp", "tp"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("seen", [True, False], ids=["stacks", "no stacks"])
def test_the_rank_at_fault_is_named_first(fault: str, dimension: str, seen: bool) -> None:
    for shape in ((2, 2, 2), (3, 2, 2), (2, 4, 2), (4, 2, 4)):
        world = shape[0] * shape[1] * shape[2]
        for odd in (0, world // 2, world - 1):
            _, roots = diagnose_fault(shape, fault, dimension, odd, 7, seen)
            assert roots[0] == (odd,), (shape, odd, roots)


@given(
    st.sampled_from([(1, 3, 2), (2, 2, 2), (2, 3, 2), (3, 2, 2), (4, 2, 2)]),
    st.sampled_from(FAULTS),
    st.data(),
)
def test_any_rank_at_any_place(
    shape: tuple[int, int, int], fault: str, data: st.DataObject
) -> None:
    dimension = data.draw(st.sampled_from(["dp", "tp"] if shape[0] == 1 else ["pp", "dp", "tp"]))
    odd = data.draw(st.integers(0, shape[0] * shape[1] * shape[2] - 1))
    place = data.draw(st.integers(0, 8))
    _, roots = diagnose_fault(shape, fault, dimension, odd, place, seen=False)
    assert roots[0] == (odd,)


def test_a_job_that_goes_on_is_well_and_one_with_a_rank_unseen_is_not() -> None:
    flights = Player(make_programs((2, 2, 2), 2)).play()
    diagnosis = diagnose_hang(flights)
    assert diagnosis.well
    assert summarise_diagnosis(flights, diagnosis)[-1].endswith("was seen, and none waits")
    del flights[5]
    diagnosis = diagnose_hang(flights)
    assert diagnosis.roots == ()
    assert diagnosis.unknown[0].startswith("1 rank left no record (5): set TORCH_FR_BUFFER_SIZE")
    assert not diagnosis.well


def test_all_have_come_and_the_data_does_not() -> None:
    group = ProcessGroup("0", "default_pg", (0, 1, 2, 3))
    one = Operation(group, 7, "all_gather", "[[8]]", over=False)
    flights = {rank: Flight((group,), (one,)) for rank in range(4)}
    (root,) = diagnose_hang(flights).roots
    assert (root.kind, root.ranks) == (Kind.TRANSFER, (0, 1, 2, 3))
    assert "look at the network" in root.text
    stopped = diagnose_hang(flights, Seen(stopped=frozenset({2}), hosts={2: "n7"})).roots[0]
    assert (stopped.kind, stopped.ranks) == (Kind.STOPPED, (2,))
    assert stopped.text.startswith("rank 2 (n7) is stopped by a signal, inside all_gather 7")


def test_an_operation_in_the_background_does_not_hide_who_is_behind() -> None:
    """Rank 1 has begun an all_reduce on another stream, to which all have come, and sleeps."""
    world = ProcessGroup("0", "default_pg", (0, 1, 2))
    pair = ProcessGroup("1", "mesh_tp", (1, 2))
    background = Operation(pair, 4, "all_reduce", "[[8]]", over=False)
    awaited = Operation(world, 9, "all_gather", "[[8]]", over=False)
    flights = {
        0: Flight((world,), (awaited,)),
        1: Flight((world, pair), (background,)),
        2: Flight((world, pair), (background, awaited)),
    }
    seen = Seen(world=3, elsewhere=frozenset({1}), doing={1: "at train.py:9"})
    (root,) = diagnose_hang(flights, seen).roots
    assert (root.kind, root.ranks) == (Kind.BEHIND, (1,))
    assert "has not come to all_gather 9" in root.text
    assert "now it is at train.py:9" in root.text
    # without its stack nobody can tell: the operation may hold it
    assert diagnose_hang(flights, Seen(world=3)).roots[0].kind is Kind.TRANSFER
    # where both ranks of it are awaited, it is the operation that does not end
    flights[2] = Flight((world, pair), (background,))
    both = Seen(world=3, elsewhere=frozenset({1, 2}))
    assert diagnose_hang(flights, both).roots[0].kind is Kind.TRANSFER


def test_ranks_that_wait_for_each_other_and_are_alike_are_a_ring() -> None:
    first, second = ProcessGroup("a", "first", (0, 1)), ProcessGroup("b", "second", (0, 1))
    flights = {
        0: Flight((first, second), (Operation(first, 1, "all_reduce", "", over=False),)),
        1: Flight((first, second), (Operation(second, 1, "all_reduce", "", over=False),)),
    }
    (root,) = diagnose_hang(flights).roots
    assert (root.kind, root.ranks) == (Kind.RING, (0, 1))
    assert root.text.startswith("ranks 0-1 wait for each other (rank 0 in all_reduce 1 of group a")


def test_recorders_that_are_full_have_forgotten_their_oldest() -> None:
    """Each keeps its newest operations: they begin at different places, and nothing is counted."""
    programs = make_programs((2, 2, 2), 120)
    for fault in ("skips", "sleeps", "other"):
        broken = {**programs, 5: break_program(programs[5], fault, "tp", 560)}
        whole = Player(broken).play()
        flights = {
            rank: replace(flight, operations=flight.operations[-NEWEST:])
            for rank, flight in whole.items()
        }
        assert min(len(one.operations) for one in whole.values()) > 500
        assert diagnose_hang(flights).roots[0].ranks == (5,)


def test_thousands_of_ranks_take_seconds() -> None:
    programs = make_programs((8, 32, 8), 2)
    programs[1000] = break_program(programs[1000], "sleeps", "tp", 3)
    flights = Player(programs).play()
    (root,) = diagnose_hang(flights).roots
    assert (root.ranks, root.waiting) == ((1000,), 2047)
    assert root.text.startswith("rank 1000 (dp 29, pp 3, tp 0) has not come to all_reduce")


GROUPS = [
    ProcessGroup("0", "default_pg", (0, 1, 2, 3)),
    ProcessGroup("1", "mesh_tp", (0, 1)),
    ProcessGroup("2", "mesh_tp", (2, 3)),
    ProcessGroup("3", "undefined"),
]
OPERATIONS = st.builds(
    Operation,
    group=st.sampled_from(GROUPS),
    number=st.integers(0, 3),
    name=st.sampled_from(["all_reduce", "broadcast", "send", "recv"]),
    sizes=st.sampled_from(["[[4]]", "[[7]]"]),
    over=st.booleans(),
    place=st.just(""),
    peer=st.none() | st.integers(-1, 5),
)


@given(st.dictionaries(st.integers(0, 4), st.lists(OPERATIONS, max_size=6), max_size=5))
def test_whatever_is_recorded_a_job_that_waits_is_never_well(
    recorded: dict[int, list[Operation]],
) -> None:
    flights = {rank: Flight((), tuple(rows)) for rank, rows in recorded.items()}
    diagnosis = diagnose_hang(flights)
    if any(not one.over for rows in recorded.values() for one in rows):
        assert diagnosis.waiting
        assert not diagnosis.well
        assert diagnosis.roots or diagnosis.unknown
    assert summarise_diagnosis(flights, diagnosis)
