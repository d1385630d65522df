"""One outcome a check, from what nodes and ranks left; who left nothing is named."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hpcstack.report import Outcome, merge_rows
from hpcstack.suite.outcomes import RunFiles, SuiteRun, find_telling_line, judge_lag, make_outcomes
from hpcstack_smoke.request import Request

SIZE = SuiteRun(Request("", "ddp.fp32", "quick", nodes=2, ranks=2))


def row(rank: int, status: str = "PASS", code: str = "ddp.fp32", **more: Any) -> dict[str, Any]:
    return {
        "code": code,
        "where": f"n{rank // 2}:{rank}",
        "status": status,
        "seconds": 1.0,
        "evidence": "",
        **more,
    }


def found(*documents: dict[str, Any]) -> RunFiles:
    out = RunFiles()
    for document in documents:
        out.add(document)
    return out


def test_all_ranks_must_answer() -> None:
    documents = [{"rank": rank, "host": f"n{rank // 2}", "rows": [row(rank)]} for rank in range(4)]
    assert [one.status for one in make_outcomes(SIZE, found(*documents), "")] == ["PASS"]


def test_a_rank_that_never_came_is_named() -> None:
    documents: list[dict[str, Any]] = [
        {"rank": rank, "planted": "", "host": f"n{rank // 2}", "rows": []} for rank in (0, 1, 3)
    ]
    task = {
        "rank": 2,
        "host": "n1",
        "rows": [row(2, code="tasks.exchange")],
    }  # its task came: that is another process
    (one,) = make_outcomes(SIZE, found(*documents, task), "DistStoreError: timeout")
    assert (one.status, one.measured) == (
        "ERROR",
        "4 of 4 ranks left no result; never started: rank 2",
    )
    assert one.evidence == "DistStoreError: timeout"


def test_a_rank_that_hangs_in_a_check_is_named() -> None:
    documents = [{"rank": rank, "host": f"n{rank // 2}", "rows": [row(rank)]} for rank in range(3)]
    stuck = {"rank": 3, "host": "n1", "rows": [], "running": "ddp.fp32"}
    (one,) = make_outcomes(SIZE, found(*documents, stuck), "")
    assert one.measured == "1 of 4 ranks left no result; in the middle of it: n1:3"


def test_an_agents_word_for_its_image_counts_for_all_its_ranks() -> None:
    rows = [
        {
            "code": "ddp.fp32",
            "where": f"n{n}",
            "for_all_ranks": True,
            "status": "SKIP",
            "seconds": 0.0,
            "evidence": "no torch",
        }
        for n in (0, 1)
    ]
    (one,) = make_outcomes(SIZE, found({"host": "n0", "inventory": {}, "rows": rows}), "")
    assert (one.status, one.evidence) == ("SKIP", "no torch")


def test_families_stay_together() -> None:
    codes = [
        one.code
        for one in make_outcomes(
            SuiteRun(Request("", "", "full", nodes=1, ranks=1)), RunFiles(), ""
        )
    ]
    families = [code.partition(".")[0] for code in codes]
    assert len([1 for a, b in pairwise(families) if a != b]) == len(set(families)) - 1


def test_a_gpu_that_lags_behind_the_others_is_named() -> None:
    rows = [
        row(rank, code="node.hbm", figures={"hbm_TB_s": 2.0 if rank != 3 else 1.2})
        for rank in range(4)
    ]
    one = judge_lag(merge_rows(rows), {})
    assert one.status == "WARN"
    assert "n1:3 1.2 of 2 hbm_TB_s" in one.measured
    assert judge_lag(merge_rows(rows[:3]), {}).status == "PASS"


def test_figures_and_series_of_the_first_rank_are_kept() -> None:
    series = [{"name": "loss", "x": [0], "y": [1.0]}]
    one = merge_rows(
        [
            row(0, figures={"a_GB_s": 1.0}, series=series),
            row(1, figures={"a_GB_s": 1.0}, series=series),
        ]
    )
    assert one.figures == {"a_GB_s": 1.0}
    assert one.series == tuple(series)
    assert one.peers == {}
    assert isinstance(one, Outcome)


def test_the_line_that_tells_most() -> None:
    lines = ["noise", "[rank1]: ValueError: no", "SomeError in the launcher"]
    assert find_telling_line(lines, "last") == "[rank1]: ValueError: no"
    assert find_telling_line(["x", "an Error here"], "last") == "an Error here"
    assert find_telling_line([], "last") == "last"


def test_the_slowest_rank_speaks_for_all_and_nothing_infinite_is_kept() -> None:
    rows = [row(n, figures={"a_GB_s": 5.0 - n, "b_us": 1.0 + n, "loss_error": float("inf")},
                series=[{"name": "loss", "x": [0], "y": [float("nan")]}]) for n in range(2)]  # fmt: skip
    one = merge_rows(rows)
    assert one.figures == {"a_GB_s": 4.0, "b_us": 2.0}
    assert one.series == ()
    assert "loss" not in one.model_dump_json()


def test_what_is_no_row_of_ours_is_left_out() -> None:
    out = found(
        {"rank": 0, "host": "n0", "rows": [{"code": "x"}, 5, {**row(0), "status": "FINE"}, row(0)]}
    )
    assert len(out.rows) == 1
