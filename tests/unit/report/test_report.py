"""Reports: verdicts that cannot lie, and formats that other tools read."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from hpcstack.report import Outcome, Report, merge_rows, render_junit, render_text


def report(*statuses: str, **fields: Any) -> Report:
    outcomes = tuple(
        Outcome(code=f"node.c{n}", status=status, evidence="seen")
        for n, status in enumerate(statuses)
    )
    base: dict[str, Any] = {"stack": "s-1", "image": "/i", "image_sha256": "0" * 64, "suite": "0", "runtime": "pyxis",
                            "started": "2026-01-01T00:00:00+00:00", "seconds": 1.0, "outcomes": outcomes}  # fmt: skip
    return Report(**{**base, **fields})


@pytest.mark.parametrize(
    ("statuses", "verdict"),
    [
        (("PASS", "SKIP"), "PASS"),
        (("PASS", "WARN"), "PASS"),
        (("SKIP", "SKIP"), "SKIP"),
        ((), "SKIP"),
        (("PASS", "FAIL"), "FAIL"),
        (("PASS", "ERROR", "FAIL"), "ERROR"),
    ],
)
def test_verdicts(statuses: tuple[str, ...], verdict: str) -> None:
    assert report(*statuses).verdict() == verdict


def test_strict_makes_a_skip_fail() -> None:
    assert report("PASS", "SKIP").verdict(strict=True) == "FAIL"


def row(status: str, where: str) -> dict[str, Any]:
    return {
        "code": "node.gpus",
        "status": status,
        "where": where,
        "evidence": f"{status} on {where}",
        "seconds": 1.0,
    }


def test_the_worst_rank_is_named() -> None:
    outcome = merge_rows([row("PASS", "n1"), row("FAIL", "n2"), row("PASS", "n3")])
    assert (outcome.status, outcome.where) == ("FAIL", ("n2",))


def test_pass_here_and_skip_there_is_a_warning() -> None:
    outcome = merge_rows([row("PASS", "n1"), row("SKIP", "n2")])
    assert (outcome.status, outcome.where) == ("WARN", ("n2",))
    assert "SKIP on n2" in outcome.evidence


def test_skipped_everywhere_is_a_skip() -> None:
    assert merge_rows([row("SKIP", "n1"), row("SKIP", "n2")]).status == "SKIP"


def test_text_says_what_stands_in() -> None:
    shown = render_text(report("PASS", stand_in="Debian", virtual_nodes=True))
    assert "STAND-IN: Debian" in shown
    assert "VIRTUAL" in shown
    assert shown.endswith("PASS, CPU only: 1 PASS\n")


def test_junit_has_real_skips_and_errors() -> None:
    suite = ElementTree.fromstring(
        render_junit(report("PASS", "SKIP", "ERROR", "FAIL")).split("\n", 1)[1]
    )
    assert [suite.get(name) for name in ("tests", "skipped", "errors", "failures")] == [
        "4",
        "1",
        "1",
        "1",
    ]
    assert [len(suite.findall(f".//{name}")) for name in ("skipped", "error", "failure")] == [
        1,
        1,
        1,
    ]
    assert suite.find("properties/property[@name='image_sha256']") is not None


def test_junit_survives_control_characters() -> None:
    outcome = Outcome(code="a.b", status="FAIL", evidence="\x00\x1b[31m<&>\ud800")
    ElementTree.fromstring(
        render_junit(report().model_copy(update={"outcomes": (outcome,)})).split("\n", 1)[1]
    )
