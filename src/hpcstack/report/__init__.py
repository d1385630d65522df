"""Reports of test runs: one versioned document, and the forms that are made of it. Pure."""

from hpcstack.report.html import render_html
from hpcstack.report.junit import render_junit
from hpcstack.report.model import FORMAT, Outcome, Report, merge_rows
from hpcstack.report.plain import render_markdown, render_prometheus
from hpcstack.report.text import render_text

__all__ = [
    "FORMAT",
    "Outcome",
    "Report",
    "render_html",
    "render_junit",
    "render_markdown",
    "render_prometheus",
    "render_text",
    "merge_rows",
]
