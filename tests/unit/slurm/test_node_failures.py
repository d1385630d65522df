"""Nodes on which more jobs died than chance explains, of what sacct says of a site's jobs."""

from __future__ import annotations

import random

import pytest

from hpcstack.slurm.node_failures import (
    EndedJob,
    count_by_node,
    parse_ended_jobs,
)


def test_only_what_may_be_a_nodes_fault_counts() -> None:
    rows = [
        ("1", "ann", "COMPLETED", "node[1-2]"), ("2", "ann", "FAILED", "node1"),
        ("3", "bob", "CANCELLED by 1000", "node1"), ("4", "bob", "TIMEOUT", "node1"),
        ("5", "bob", "OUT_OF_MEMORY", "node1"), ("6", "bob", "NODE_FAIL", "node2"), ("7", "bob", "FAILED", ""),
    ]  # fmt: skip
    assert [job.number for job in parse_ended_jobs(rows)] == ["1", "2", "6"]


def make_jobs(seed: int, bad: str, share: float) -> list[EndedJob]:
    """300 jobs of 4 of 40 nodes. One in ten dies by itself; with BAD in it, SHARE of them."""
    dice = random.Random(seed)
    jobs = []
    for number in range(300):
        nodes = tuple(f"node{n}" for n in dice.sample(range(40), 4))
        dies = dice.random() < (share if bad in nodes else 0.1)
        jobs.append(EndedJob(str(number), "ann", "FAILED" if dies else "COMPLETED", nodes))
    return jobs


@pytest.mark.parametrize("seed", range(20))
def test_the_node_that_kills_jobs_is_named_first(seed: int) -> None:
    found = count_by_node(make_jobs(seed, "node17", 0.8))
    assert found[0].node == "node17"
    assert found[0].is_odd
    assert len(found[0].died) >= 10


def test_where_all_nodes_are_alike_hardly_any_is_odd() -> None:
    odd = [count_by_node(make_jobs(seed, "none", 0))[0].is_odd for seed in range(200)]
    assert sum(odd) <= 6  # one in a hundred is what chance may give


def test_a_program_that_dies_everywhere_makes_no_node_odd() -> None:
    jobs = [
        EndedJob(str(n), "ann", "FAILED", (f"node{n % 8}", f"node{(n + 1) % 8}")) for n in range(80)
    ]
    assert not [one for one in count_by_node(jobs) if one.is_odd]


def test_two_dead_jobs_say_nothing() -> None:
    jobs = [EndedJob(str(n), "ann", "COMPLETED", ("node1",)) for n in range(1000)]
    jobs += [EndedJob("x", "ann", "FAILED", ("node2",)), EndedJob("y", "ann", "FAILED", ("node2",))]
    (first, *_) = count_by_node(jobs)
    assert (first.node, first.is_odd) == ("node2", False)
