"""A report as Markdown, and as a textfile for Prometheus. Pure.

Tested in tests/unit/report/test_report_forms.py.
"""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING

from hpcstack.core.errors import format_count
from hpcstack.core.hosts import shorten_hosts
from hpcstack.core.prometheus import Metric, render_metrics_text

if TYPE_CHECKING:
    from hpcstack.report.model import Report


def escape_cell(text: str) -> str:
    """Return TEXT as one cell of a Markdown table, with nothing left in it that is markup."""
    one_line = escape(" ".join(text.split()), quote=False)
    return re.sub(r"([\\`*_{}\[\]|#])", r"\\\1", one_line)


def render_markdown(report: Report) -> str:
    """Return REPORT as Markdown, for a ticket or a wiki."""
    lines = [f"# {escape_cell(report.stack)}: {report.verdict()}", ""]
    caveats = report.caveats()
    if caveats:
        lines += [f"> **NOTE** {escape_cell(caveat)}" for caveat in caveats]
        lines.append("")
    lines += [
        f"Image sha256:{escape_cell(report.image_sha256)}, suite {escape_cell(report.suite_name)}, "
        f"tier {escape_cell(report.tier)}, runtime {escape_cell(report.runtime)}, "
        f"{report.world_size} ranks on {format_count(len(report.nodes), 'node')}: "
        f"{escape_cell(shorten_hosts(report.nodes))}. {report.started}, {report.seconds:.0f} s.",
        "",
        "| status | check | measured | expected | on | remedy |",
        "|---|---|---|---|---|---|",
    ]

    for one in report.outcomes:
        expected = f"{one.expected} ({one.source})" if one.source else one.expected
        bad = one.status in ("FAIL", "ERROR", "WARN")
        cells = (
            one.status,
            one.code,
            one.measured or one.evidence,
            expected,
            ", ".join(one.where) if bad else "",
            one.remedy,
        )
        lines.append("| " + " | ".join(escape_cell(text) for text in cells) + " |")
    return "\n".join(lines) + "\n"


def render_prometheus(report: Report) -> str:
    """Return REPORT for the textfile collector of node_exporter.

    It has a gauge for each check, for each figure, for how long the run took, and for when.
    """
    common = (report.stack, report.image_sha256[:12], report.runtime)
    checks: dict[tuple[str, ...], float] = {}
    figures: dict[tuple[str, ...], float] = {}
    for one in report.outcomes:
        checks[(*common, one.code, one.status)] = 1.0
        informational = str(one.informational).lower()
        for name, value in sorted(one.figures.items()):
            figures[(*common, one.code, name, informational)] = value

    labels = ("stack", "image", "runtime")
    return render_metrics_text(
        [
            Metric(
                "check",
                "Result of a check: 1 for the status that it has.",
                (*labels, "code", "status"),
                checks,
            ),
            Metric(
                "figure",
                "What a check measured; the unit ends the figure's name.",
                (*labels, "code", "figure", "informational"),
                figures,
            ),
            Metric("run_seconds", "How long the run took.", labels, {common: report.seconds}),
            Metric(
                "run_timestamp_seconds",
                "When it started.",
                labels,
                {common: _parse_time(report.started)},
            ),
        ]
    )


def _parse_time(started: str) -> float:
    """Return the time STARTED, of ISO 8601, as seconds since 1970."""
    from datetime import datetime

    return datetime.fromisoformat(started).timestamp()
