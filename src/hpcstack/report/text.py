"""A report for a terminal. Pure.

Tested in tests/unit/report/test_report.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.core.errors import format_count
from hpcstack.core.hosts import shorten_hosts

if TYPE_CHECKING:
    from hpcstack.report.model import Outcome, Report

# checks that pass on a GPU only
GPU_CHECKS = {
    "node.gpus",
    "node.driver",
    "node.arch",
    "node.matmul",
    "node.memory",
    "nccl.exact",
    "nccl.bandwidth",
}


def render_text(report: Report, *, strict: bool = False) -> str:
    """Return REPORT as text: a line for each check, details of what is wrong, and the verdict.

    STRICT: a check that was skipped fails the run.
    """
    nodes = format_count(len(report.nodes), "node")
    ranks = format_count(report.world_size, "rank")
    lines = [
        f"{report.stack}  image sha256:{report.image_sha256[:12]}  suite {report.suite_name}",
        f"{nodes}: {shorten_hosts(report.nodes)}; {ranks}, "
        f"{report.backend or 'no'} backend, runtime {report.runtime}; {report.seconds:.0f} s",
    ]
    lines += [f"NOTE {caveat}" for caveat in report.caveats()]
    lines.append("")

    last_details: list[str] = []
    for outcome in report.outcomes:
        said = outcome.measured or outcome.evidence
        lines.append(f"{outcome.status:<5} {outcome.code:<24} {said}".rstrip())
        if outcome.status in ("FAIL", "WARN", "ERROR"):
            details = list_details(outcome)
            lines += details if details != last_details else ["        as above"]
            last_details = details

    counts = report.counts()
    statuses = ("PASS", "FAIL", "ERROR", "WARN", "SKIP")
    tally = ", ".join(f"{counts[status]} {status}" for status in statuses if counts[status])
    verdict: str = report.verdict(strict=strict)
    if has_cpus_only(report):
        verdict += ", CPU only"
    lines += ["", f"{verdict}: {tally or 'no check ran'}"]
    return "\n".join(lines) + "\n"


def has_cpus_only(report: Report) -> bool:
    """Whether REPORT is a PASS of which no check has looked at a GPU."""
    passed = {one.code for one in report.outcomes if one.status == "PASS"}
    return report.verdict() == "PASS" and report.backend != "nccl" and not passed & GPU_CHECKS


def list_details(outcome: Outcome) -> list[str]:
    """Return a line for each thing that OUTCOME has to say beside what was measured."""
    expected = outcome.expected
    if outcome.source:
        expected = f"{expected} ({outcome.source})"
    shown = {
        "expected": expected,
        "on": ", ".join(outcome.where),
        "seen": outcome.evidence,
        "remedy": outcome.remedy,
    }
    return [f"        {name}: {value}" for name, value in shown.items() if value]
