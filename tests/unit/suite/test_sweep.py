"""A sweep's judgement: who is slow with everybody, who fails with everybody."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hpcstack.core.process import Completed, Runner
from hpcstack.render.template import fill_template
from hpcstack.suite.bisect import Bisection, Measured
from hpcstack.suite.sweep import Swept, find_usable_nodes, judge_pairs

NODES = [f"n{number}" for number in range(5)]


def swept(slow: str = "", failing: str = "") -> Swept:
    out = Swept(NODES)
    for pair in combinations(NODES, 2):
        if failing in pair:
            out.failed[pair] = "nccl.exact: wrong"
        else:
            out.busbw[pair] = 5.0 if slow in pair else 40.0
    judge_pairs(out)
    return out


def test_a_slow_node_is_named_with_the_reason() -> None:
    found = swept(slow="n2")
    assert list(found.odd) == ["n2"]
    assert (
        found.drain_list()
        == "n2\thpcstack sweep: best pair 5 GB/s, others' median 40 (limit 0.7)\n"
    )


def test_a_node_that_fails_with_everybody_is_named() -> None:
    assert swept(failing="n3").odd == {
        "n3": "hpcstack sweep: failed with every partner: nccl.exact: wrong"
    }


def test_a_healthy_partition_has_none() -> None:
    assert swept().odd == {}


def test_the_job_quotes_what_it_is_given() -> None:
    text = fill_template("launchers", "jobs/sweep.sbatch.j2", command=["hpcstack", "test", "a b;$(x)"], log="/l g", ended="/e", nodes="a,b", count=2,
                options=["--account=x y"])  # fmt: skip
    assert "hpcstack test 'a b;$(x)'" in text
    assert "#SBATCH '--account=x y'" in text


def test_what_slurm_says_when_it_does_not_drain_is_told() -> None:
    from hpcstack.suite.sweep import drain_nodes

    class Refusing(Runner):
        def output(self, argv: Any, **_: Any) -> Completed:
            return Completed(tuple(argv), 1, ("slurm_update error: Invalid user id",))

    assert drain_nodes({"n2": "slow"}, Refusing()) == ["n2: slurm_update error: Invalid user id"]


def bisected(count: int, bad: set[str], failing: bool = False) -> tuple[Bisection, int]:
    """A bisection of COUNT nodes of which BAD are slow, and how many jobs it took."""
    nodes = tuple(f"n{number}" for number in range(count))
    state, jobs = Bisection(nodes), 0
    while groups := state.next_groups():
        jobs += len(groups)
        taken = [node for group in groups for node in group]
        assert len(taken) == len(set(taken))  # each round's jobs run beside each other
        slow = Measured(failed="nccl.exact: wrong") if failing else Measured(12.0)
        state.learn(
            {
                group: slow if bad & set(group) else Measured(40.0 + len(group) % 3)
                for group in groups
            }
        )
    return state, jobs


@given(st.integers(16, 200), st.data())
def test_up_to_three_bad_nodes_are_found_in_log_rounds(count: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.sampled_from([f"n{number}" for number in range(count)]), max_size=3))
    state, _ = bisected(count, bad, data.draw(st.booleans()))
    assert set(state.odd) == bad
    assert not state.unsure
    assert state.rounds <= math.ceil(math.log2(count)) + 1


def test_sixty_four_nodes_take_few_jobs() -> None:
    state, jobs = bisected(64, {"n3", "n4", "n60"})
    assert set(state.odd) == {"n3", "n4", "n60"}
    assert state.rounds <= 5
    assert jobs < 30
    assert bisected(64, set()) == (bisected(64, set())[0], 8)


def test_where_most_nodes_are_bad_nobody_is_blamed() -> None:
    state, _ = bisected(16, {"n0", "n2", "n4", "n6", "n8", "n10", "n12"})
    assert not state.odd  # most groups are bad: what is usual here is slow


STATES = (
    "n1 idle\nn2 drained\nn3 idle*\nn4 mixed\nn5 maint\nn6 reserved\nn7 draining\nn8 idle~\nn9 "
    "down*\nn10 allocated$\n"
)


class Sinfo(Runner):
    def output(self, argv: Any, **_: Any) -> Completed:
        return Completed(tuple(argv), 0, tuple(STATES.splitlines()), STATES)


def test_nodes_that_are_drained_or_down_are_left_out() -> None:
    """`sinfo --states=idle` has drained nodes: that is their base state (sinfo(1), %T)."""
    nodes, left_out = find_usable_nodes(Sinfo(), "p", "")
    assert nodes == ["n1", "n4", "n8"]
    assert left_out["n2"] == "drained"
    assert left_out["n3"] == "idle*"
    assert len(left_out) == 7
    assert "n6" in find_usable_nodes(Sinfo(), "p", "", "r")[0]


def test_a_node_alone_in_its_rack_is_not_blamed() -> None:
    """NVL72: pairs of one NVLink domain and pairs over the network are two classes."""
    out = Swept(NODES)
    for pair in combinations(NODES, 2):
        rack = "n4" not in pair
        out.busbw[pair] = 600.0 if rack else 46.0
        if rack:
            out.together.add(pair)
    judge_pairs(out)
    assert out.odd == {}
    out.busbw = {
        pair: 100.0 if "n2" in pair and pair in out.together else value
        for pair, value in out.busbw.items()
    }
    judge_pairs(out)
    assert list(out.odd) == ["n2"]
