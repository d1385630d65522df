"""A report as Markdown, and as a textfile for Prometheus. Pure.

Tested in tests/unit/report/test_report_forms.py.
"""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING

from hpcstack.core.errors import format_count
from hpcstack.core.hosts import shorten_hosts

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


def escape_label(text: str) -> str:
    """Return TEXT as a label's value in Prometheus' exposition format, with its quotes."""
    # control characters, other ends of lines, and halves of surrogate pairs
    text = re.sub(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]", " ", text)
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def render_prometheus(report: Report) -> str:
    """Return REPORT for the textfile collector of node_exporter.

    It has a gauge for each check, for each figure, for how long the run took, and for when.
    """
    labels = {"stack": report.stack, "image": report.image_sha256[:12], "runtime": report.runtime}
    common = ",".join(f"{name}={escape_label(value)}" for name, value in labels.items())

    out = [
        "# HELP hpcstack_check Result of a check: 1 for the status that it has.",
        "# TYPE hpcstack_check gauge",
    ]
    for one in report.outcomes:
        code = escape_label(one.code)
        status = escape_label(one.status)
        out.append(f"hpcstack_check{{{common},code={code},status={status}}} 1")

    out += [
        "# HELP hpcstack_figure What a check measured; the unit ends the figure's name.",
        "# TYPE hpcstack_figure gauge",
    ]
    for one in report.outcomes:
        code = escape_label(one.code)
        informational = escape_label(str(one.informational).lower())
        for name, value in sorted(one.figures.items()):
            own = f"code={code},figure={escape_label(name)},informational={informational}"
            out.append(f"hpcstack_figure{{{common},{own}}} {value:.10g}")

    out += [
        "# HELP hpcstack_run_seconds How long the run took.",
        "# TYPE hpcstack_run_seconds gauge",
        f"hpcstack_run_seconds{{{common}}} {report.seconds:g}",
        "# HELP hpcstack_run_timestamp_seconds When it started.",
        "# TYPE hpcstack_run_timestamp_seconds gauge",
        f"hpcstack_run_timestamp_seconds{{{common}}} {_parse_time(report.started):.0f}",
    ]
    return "\n".join(out) + "\n"


def _parse_time(started: str) -> float:
    """Return the time STARTED, of ISO 8601, as seconds since 1970."""
    from datetime import datetime

    return datetime.fromisoformat(started).timestamp()
