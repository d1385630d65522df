"""To whom nodes send, and what is made of what arrives; the exchange itself runs on the testbed
(nccl.gloo-permutations).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hpcstack_smoke.collectives.permutations import (
    find_slow_nodes,
    judge_permutations,
    plan_permutations,
)


@given(st.integers(3, 200), st.integers(1, 8))
def test_everybody_sends_to_one_other_and_gets_of_one(count: int, rounds: int) -> None:
    made = plan_permutations(count, rounds)
    assert len(made) >= rounds
    assert made == plan_permutations(count, rounds)
    for to in made:
        assert sorted(to) == [*range(count)]
        assert all(node != other for node, other in enumerate(to))


@given(st.integers(4, 40))
def test_a_slow_node_makes_nobody_else_look_slow(count: int) -> None:
    """Each exchange goes at the pace of the slower of its two nodes; a node is named by its best
    permutation.
    """
    made = plan_permutations(count)
    for slow in range(count):
        rates = [
            [10.0 if slow in (node, to[node], to.index(node)) else 40.0 for to in made]
            for node in range(count)
        ]
        assert find_slow_nodes([[("", 0.0, own, [])] for own in rates]) == [slow]


def test_of_two_nodes_there_is_one_and_of_one_none() -> None:
    assert plan_permutations(2) == [[1, 0]]
    assert plan_permutations(1) == []


def context(nodes: int, ranks: int = 2) -> Any:
    return SimpleNamespace(nodes=nodes, per_node=ranks, note=lambda: "")


def rows(nodes: int, slow: tuple[int, ...] = ()) -> list[tuple[str, float, list[float], list[int]]]:
    return [
        (
            f"n{node}",
            48.0 if node < 2 else 0.0,
            [10.0 if node in slow else 40.0, 11.0 if node in slow else 30.0],
            [],
        )
        for node in range(nodes)
        for _ in range(2)
    ]


def test_healthy() -> None:
    result = judge_permutations(context(8), rows(8), [""] * 8)
    assert result.status == "PASS"
    assert result.figures == {
        "alone_GB_s": 48.0,
        "at_once_GB_s": 35.0,
        "slowest_GB_s": 30.0,
    }


def test_a_node_that_is_slow_with_everybody_is_named() -> None:
    result = judge_permutations(context(8), rows(8, slow=(5,)), [""] * 8)
    assert result.status == "WARN"
    assert result.measured.startswith("slow with every partner: n5;")
    assert (
        judge_permutations(context(2), rows(2, slow=(1,)), [""] * 2).status == "PASS"
    )  # of two nobody can say which


def test_what_arrives_wrong_is_a_failure() -> None:
    found = rows(4)
    found[5] = ("n2", 0.0, [40.0, 30.0], [1])
    result = judge_permutations(context(4), found, [""] * 4)
    assert result.status == "FAIL"
    assert result.measured.startswith("wrong data: n2 from n0;")


def test_a_node_alone_in_its_rack_is_not_blamed() -> None:
    """Four trays of one NVLink domain, and one whose every pair is over the network."""
    found = rows(5, slow=(4,))
    assert judge_permutations(context(5), found, ["a"] * 4 + ["b"]).status == "PASS"
    assert judge_permutations(context(5), found, ["a"] * 5).status == "WARN"
