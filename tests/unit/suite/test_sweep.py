"""A sweep's judgement: who is slow with everybody, who fails with everybody."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from hpcstack.render.template import fill
from hpcstack.suite.sweep import Swept, judge

NODES = [f"n{number}" for number in range(5)]


def swept(slow: str = "", failing: str = "") -> Swept:
    out = Swept(NODES)
    for pair in combinations(NODES, 2):
        if failing in pair:
            out.failed[pair] = "nccl.exact: wrong"
        else:
            out.busbw[pair] = 5.0 if slow in pair else 40.0
    judge(out)
    return out


def test_a_slow_node_is_named_with_the_reason() -> None:
    found = swept(slow="n2")
    assert list(found.odd) == ["n2"]
    assert found.drain_list() == "n2\thpcstack sweep: best pair 5 GB/s, others' median 40 (limit 0.7)\n"


def test_a_node_that_fails_with_everybody_is_named() -> None:
    assert swept(failing="n3").odd == {"n3": "hpcstack sweep: failed with every partner: nccl.exact: wrong"}


def test_a_healthy_partition_has_none() -> None:
    assert swept().odd == {}


def test_the_job_quotes_what_it_is_given() -> None:
    text = fill("launchers", "jobs/sweep.sbatch.j2", command=["hpcstack", "test", "a b;$(x)"], log="/l g", ended="/e", nodes="a,b",
                options=["--account=x y"])  # fmt: skip
    assert "hpcstack test 'a b;$(x)'" in text and "#SBATCH '--account=x y'" in text


def test_what_slurm_says_when_it_does_not_drain_is_told() -> None:
    from hpcstack.core.process import Completed, Runner
    from hpcstack.suite.sweep import drain

    class Refusing(Runner):
        def output(self, argv: Any, **_: Any) -> Completed:
            return Completed(tuple(argv), 1, ("slurm_update error: Invalid user id",))

    assert drain({"n2": "slow"}, Refusing()) == ["n2: slurm_update error: Invalid user id"]
