"""Judge a report: by the gates of its topology, by what the site expects, and by its history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.suite import gates, history
from hpcstack.suite.outcomes import judge_own_lag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.report import Outcome, Report
    from hpcstack.site.fabric import Baseline

# ends of the names of figures that depend on time: virtual nodes, which share one machine, say
# nothing of them
TIMED = ("_s", "_ms", "_us", "_ns", "_min", "_h", "_Hz", "FLOPS", "speedup", "efficiency")


def judge_report(
    report: Report, pasts: list[history.Past], baselines: Mapping[str, Baseline]
) -> Report:
    """Return REPORT with each outcome judged, but for those that are only informational.

    It is held against gates, those of own checks too, against BASELINES, which the site expects of
    such nodes, and against those of PASTS that can be compared with it and did not fail.
    """
    key = history.make_history_key(report)
    same = [past for past in pasts if past.key == key and past.verdict not in ("FAIL", "ERROR")]
    out = []
    for outcome in report.outcomes:
        if report.virtual_nodes and any(name.endswith(TIMED) for name in outcome.figures):
            outcome = _judge_untimed(outcome).model_copy(update={"informational": True})
        if not outcome.informational:
            outcome = judge_own_lag(gates.judge_own_gates(outcome))
            outcome = gates.judge_baselines(gates.judge_outcome(outcome, report), baselines)
            outcome = history.judge_regression(outcome, same)
        out.append(outcome)
    return report.model_copy(update={"outcomes": tuple(out)})


def _judge_untimed(outcome: Outcome) -> Outcome:
    """Return OUTCOME judged by the gates of those figures of an own check that no time is in."""
    untimed = {name: gate for name, gate in outcome.gates.items() if not name.endswith(TIMED)}
    judged = gates.judge_own_gates(outcome.model_copy(update={"gates": untimed}))
    return judged.model_copy(update={"gates": outcome.gates})
