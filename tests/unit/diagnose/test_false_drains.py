"""The budget of false drains: what is reckoned is what the decision does, and what is shipped stays
within it.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from hpcstack.core.errors import InputError
from hpcstack.core.process import Runner
from hpcstack.diagnose.false_drains import (
    Looked,
    Misses,
    Together,
    false_drains,
    looked_at,
    read_latencies,
    share_of_late,
    try_decision,
)
from support.modules import Place


def looked(**change: float) -> Looked:
    values = {
        "nodes": 10_000,
        "checks": 8,
        "folders": 1,
        "interval_s": 300.0,
        "limit_s": 90.0,
        "misses": 5,
    } | change
    return Looked(**values)  # type: ignore[arg-type]


def test_what_is_shipped_drains_less_than_a_tenth_of_a_node_a_day(tmp_path: Path) -> None:
    """10,000 nodes, each of them busy for ten minutes once a day, and a file server that stalls
    once a week.
    """
    found = false_drains(Misses(), looked_at(Place(tmp_path).site, 10_000, 300))
    assert sum(found.values()) < 0.1
    assert sum(false_drains(Misses(), looked(misses=3)).values()) > 10, (
        "three in a row would not do"
    )


@pytest.mark.parametrize("misses", [2, 3, 5])
@pytest.mark.parametrize(
    "busy", [Together(10, 0.1), Together(18, 0.02), Together(3, 2), Together(45, 0.01)], ids=str
)
def test_the_decision_does_what_is_reckoned(misses: int, busy: Together) -> None:
    """ci/soak has 10^6 lines."""
    for trial in try_decision(
        Misses(alone=1e-4, busy=(busy,)), looked(misses=misses), Runner(), lines=120_000
    ):
        assert trial.agrees, trial
        assert trial.lines > 50_000


def test_one_that_decides_otherwise_is_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else the trial could not fail."""
    program = tmp_path / "on-node/health.awk"
    program.parent.mkdir()
    text = (Path(__file__).parents[3] / "launchers/on-node/health.awk").read_text()
    program.write_text(text.replace("count >= misses", "count >= misses - 1"))
    monkeypatch.setattr("hpcstack.diagnose.false_drains.find_data_folder", lambda _: tmp_path)
    assert not all(
        one.agrees for one in try_decision(Misses(), looked(misses=3), Runner(), lines=120_000)
    )


@pytest.mark.parametrize(
    ("minutes", "misses", "chance"),
    [
        (10, 2, 0.7),
        (10, 3, 0.0),
        (11.5, 2, 1.0),
        (16.5, 3, 1.0),
        (14, 3, 0.5),
        (1, 2, 0.0),
        (60, 5, 1.0),
    ],
)
def test_one_busy_time(minutes: float, misses: int, chance: float) -> None:
    """Of ten minutes 90 s are answered in time: 8.5 hold two rounds with a chance of 0.7."""
    one = Misses(alone=0.0, busy=(Together(minutes, 1e-6),), stalls=())
    assert false_drains(one, looked(nodes=1_000_000, misses=misses))["busy"] == pytest.approx(
        chance, abs=0.02
    )


def test_a_stall_drains_no_more_nodes_than_the_brake_lets() -> None:
    stall = Misses(alone=0.0, busy=(), stalls=(Together(60, 1.0),))
    assert false_drains(stall, looked())["stalls"] == pytest.approx(2, abs=0.1)
    assert false_drains(stall, looked(folders=0))["stalls"] == 0
    day = Misses(alone=0.0, busy=(), stalls=(Together(1440, 1.0),))
    assert 40 < false_drains(day, looked())["stalls"] <= 48, "two an hour, for as long as it lasts"


def test_a_probe_that_always_misses_drains_every_node() -> None:
    assert false_drains(Misses(alone=1.0, busy=(), stalls=()), looked(nodes=10, checks=1))[
        "alone"
    ] == pytest.approx(10)


def test_a_tail_is_seen_in_what_was_measured() -> None:
    chance = random.Random(1)
    pareto = [0.2 * chance.paretovariate(1.5) for _ in range(20_000)]
    assert share_of_late(pareto, 90) == pytest.approx((0.2 / 90) ** 1.5, rel=1.5)
    assert share_of_late([*([0.1] * 990), *([100.0] * 10)], 90) == pytest.approx(0.01)
    assert share_of_late([0.1] * 1000, 90) == share_of_late([0.0] * 1000, 90) == 0
    with pytest.raises(InputError, match="say nothing of a tail"):
        share_of_late([0.1] * 10, 90)


@pytest.mark.parametrize("text", ["x", "1\n-1\n", "nan", "inf"])
def test_a_file_that_holds_no_latencies(tmp_path: Path, text: str) -> None:
    path = tmp_path / "latencies"
    path.write_text(text)
    with pytest.raises(InputError):
        read_latencies(path)
