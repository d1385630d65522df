"""Who is odd, from what pairs measured."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from hpcstack_smoke.collectives.pairs import (
    find_guilty,
    find_odd_ones,
    find_odd_rails,
    find_slow_pairs,
    plan_tournament,
)


@given(st.integers(2, 40))
def test_a_tournament_meets_everybody_once_and_nobody_twice_in_a_round(count: int) -> None:
    rounds = plan_tournament(count)
    assert sorted(pair for pairs in rounds for pair in pairs) == list(combinations(range(count), 2))
    for pairs in rounds:
        players = [player for pair in pairs for player in pair]
        assert len(players) == len(set(players))


def test_a_slow_node_is_named_and_its_partners_are_not() -> None:
    matrix = {pair: 2.0 if 3 in pair else 40.0 for pair in combinations(range(6), 2)}
    assert find_odd_ones(matrix, 6) == [3]
    assert find_slow_pairs(matrix, [3]) == []


def test_a_slow_cable_is_a_pair_and_not_a_node() -> None:
    matrix = {pair: 2.0 if pair == (1, 4) else 40.0 for pair in combinations(range(6), 2)}
    assert find_odd_ones(matrix, 6) == []
    assert find_slow_pairs(matrix, []) == [(1, 4)]


def test_two_nodes_have_nobody_to_blame_but_rails_do() -> None:
    assert find_odd_ones({(0, 1): 1.0}, 2) == []
    assert find_odd_rails({(0, 1): [40.0, 41.0, 4.0, 39.0]}) == [2]
    assert find_odd_rails({(0, 1): [40.0, 4.0]}) == []


def test_one_slow_hca_of_a_node_is_named_with_its_rank() -> None:
    matrix = {pair: [40.0, 3.0 if 2 in pair else 40.0] for pair in combinations(range(4), 2)}
    assert find_guilty(matrix, 4) == ([], [(2, 1)])
    matrix = {pair: [3.0, 3.0] if 2 in pair else [40.0, 40.0] for pair in combinations(range(4), 2)}
    assert find_guilty(matrix, 4) == ([2], [])


@given(st.floats(0.9, 1.1), st.integers(3, 12))
def test_noise_blames_nobody(noise: float, count: int) -> None:
    matrix = {
        pair: 40.0 * (noise if sum(pair) % 3 else 1.0) for pair in combinations(range(count), 2)
    }
    assert find_odd_ones(matrix, count) == []
