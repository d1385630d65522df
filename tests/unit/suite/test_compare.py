"""Two reports, held against each other."""

from __future__ import annotations

from typing import Any

from hpcstack.report import Outcome, Report
from hpcstack.suite.compare import compare_reports


def report(**outcomes: tuple[str, dict[str, float]]) -> Report:
    rows = tuple(
        Outcome(code=code, status=status, evidence="", figures=figures)
        for code, (status, figures) in outcomes.items()
    )
    return Report(
        stack="s-1", image="/i", image_sha256="0" * 64, suite="0", runtime="pyxis",
        started="2026-01-01T00:00:00+00:00", seconds=1.0, outcomes=rows,
    )  # fmt: skip


def rows(first: Report, second: Report) -> dict[str, dict[str, Any]]:
    return {row["code"]: row for row in compare_reports(first, second)}


def test_a_figure_has_both_values_and_their_ratio() -> None:
    found = rows(report(a=("PASS", {"GB_s": 200.0})), report(a=("WARN", {"GB_s": 150.0})))
    assert found["a"]["figures"] == {"GB_s": [200.0, 150.0, 0.75]}
    assert found["a"]["statuses"] == ["PASS", "WARN"]


def test_nothing_is_divided_by_zero() -> None:
    found = rows(report(a=("PASS", {"GB_s": 0.0})), report(a=("PASS", {"GB_s": 1.0})))
    assert found["a"]["figures"] == {"GB_s": [0.0, 1.0, None]}


def test_only_what_both_have_is_compared() -> None:
    first = report(a=("PASS", {"s": 1.0, "own": 2.0}), b=("PASS", {}))
    assert list(rows(first, report(a=("PASS", {"s": 1.0})))) == ["a"]
    assert rows(first, report(a=("PASS", {"s": 1.0})))["a"]["figures"] == {"s": [1.0, 1.0, 1.0]}


def test_what_both_skipped_is_no_row() -> None:
    skipped = report(a=("SKIP", {}))
    assert rows(skipped, skipped) == {}
    assert list(rows(skipped, report(a=("PASS", {})))) == ["a"]
