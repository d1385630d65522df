"""A report, judged: by the gates of its topology, then by the site's own history; virtual nodes prove no figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.suite import gates, history

if TYPE_CHECKING:
    from hpcstack.report import Report

TIMED = ("_s", "_us", "speedup", "efficiency")  # figures that virtual nodes, which share one machine, say nothing of


def judged(report: Report, pasts: list[history.Past]) -> Report:
    """REPORT with each outcome held against what is known."""
    same = [past for past in pasts if past.key == history.key(report) and past.verdict not in ("FAIL", "ERROR")]
    out = []
    for outcome in report.outcomes:
        if report.virtual_nodes and any(name.endswith(TIMED) for name in outcome.figures):
            outcome = outcome.model_copy(update={"informational": True})
        if not outcome.informational:
            outcome = history.regressed(gates.judged(outcome, report), same)
        out.append(outcome)
    return report.model_copy(update={"outcomes": tuple(out)})
