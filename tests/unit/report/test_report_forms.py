"""HTML, Markdown, Prometheus: whole, escaped, and nothing fetched."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstack.report import Outcome, Report, render_html, render_markdown, render_prometheus
from hpcstack.report.plots import choose_ticks, format_bytes
from hpcstack.suite.history import Past

LINE = {
    "name": "all_reduce float32",
    "x": [1 << 20, 1 << 28],
    "y": [10.0, 40.0],
    "x_unit": "bytes",
    "y_unit": "GB/s",
    "gate": 35.0,
}
MATRIX = {
    "kind": "matrix",
    "name": "pairs of nodes",
    "labels": ["n1", "n2"],
    "values": [[0, 40.0], [40.0, 0]],
    "y_unit": "GB/s",
}
WORDS = {
    "kind": "words",
    "name": "transport",
    "labels": ["0", "1"],
    "values": [["", "P2P"], ["P2P", ""]],
}
EVIL = '</td><script>alert("x")</script>|`$(rm -rf /)`\n# x'


def made(text: str = "fine", **more: Any) -> Report:
    outcomes = (
        Outcome(code="nccl.bandwidth", status="FAIL", measured=text, expected=text, source=text, evidence=text, remedy=text,
                figures={"busbw_GB_s": 40.0}, series=(LINE, MATRIX, WORDS), where=(text,)),
        Outcome(code="node.gpus", status="SKIP", evidence=text),
        Outcome(code="scaling.strong", status="PASS", measured=text, informational=True, figures={"efficiency": 0.5},
                series=({"name": "S", "x": [1, 2, 4], "y": [1, 1.9, 3.5], "x_unit": "ranks", "y_unit": "S(n)", "ideal": [1, 2, 4]},)),
    )  # fmt: skip
    return Report(
        stack="s-1", image="/i", image_sha256="0" * 64, suite=text, runtime="pyxis", nodes=("n1", "n2"), world_size=4,
        started="2026-01-01T00:00:00+00:00", seconds=1.0, stand_in=text, outcomes=outcomes,
        inventory={"n1": {"gpu": text, "gpus": 8}}, **more,
    )  # fmt: skip


class Checker(HTMLParser):
    """Every element is closed, and nothing is fetched or run."""

    VOID = ("meta", "line", "circle", "rect", "path", "polyline")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img", "iframe", "object")
        assert not {name for name, _ in attrs} & {"src", "href", "onload", "onclick", "style"}
        self.seen.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def checked(page: str) -> list[str]:
    parser = Checker()
    parser.feed(page)
    assert parser.open == []
    return parser.seen


def test_the_page_is_whole_and_tells_all() -> None:
    page = render_html(
        made(),
        [
            Past(f"2026-01-0{n}", "k", {}, "PASS", {"nccl.bandwidth/busbw_GB_s": 40.0 + n})
            for n in (1, 2, 3)
        ],
    )
    seen = checked(page)
    assert seen.count("svg") == 4  # bandwidth, pairs, scaling, history
    assert "gate 35" in page
    assert "STAND-IN" in page
    assert "over 3 runs" in page
    assert re.search(
        r'<svg [^>]*role="img" aria-label="nccl.bandwidth: all_reduce float32: 10 to 40 GB/s"', page
    )
    assert "url(" not in page
    assert "@import" not in page
    assert "http" not in page


@pytest.mark.parametrize("text", [EVIL, "\ud7ff\u202e", "&amp;<b>"])
def test_no_text_becomes_markup(text: str) -> None:
    checked(render_html(made(text)))
    assert "<script" not in render_markdown(made(text))
    assert all(
        line.count(" | ") == 5
        for line in render_markdown(made(text)).splitlines()
        if line.startswith("| FAIL")
    )


@given(st.text())
def test_any_text_can_be_shown(text: str) -> None:
    report = made(text)
    checked(render_html(report))
    render_markdown(report)
    for line in render_prometheus(report).splitlines():
        assert line.startswith("#") or re.fullmatch(
            r'hpcstack_\w+\{(\w+="([^"\\]|\\.)*",?)*\} [-+0-9.e]+', line
        ), line


def test_prometheus_has_a_line_a_check_and_a_figure() -> None:
    text = render_prometheus(made())
    assert (
        'hpcstack_check{code="nccl.bandwidth",image="000000000000",runtime="pyxis",stack="s-1",status="FAIL"} 1.0'
        in text
    )
    assert 'figure="efficiency",image="000000000000",informational="true"' in text


def test_ticks_are_round_and_sizes_binary() -> None:
    assert choose_ticks(0, 43) == [0, 10, 20, 30, 40]
    assert [format_bytes(value) for value in (8, 65536, 1 << 28, 8 << 30)] == [
        "8 B",
        "64 KiB",
        "256 MiB",
        "8 GiB",
    ]
