"""Reports: one versioned document, and what is made of it. Pure."""

from hpcstack.report.html import html
from hpcstack.report.junit import junit
from hpcstack.report.model import FORMAT, Outcome, Report, worst
from hpcstack.report.plain import markdown, prometheus
from hpcstack.report.text import text

__all__ = ["FORMAT", "Outcome", "Report", "html", "junit", "markdown", "prometheus", "text", "worst"]
