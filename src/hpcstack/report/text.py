"""The report for a terminal. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.core.errors import format_count
from hpcstack.core.hosts import shown_hosts

if TYPE_CHECKING:
    from hpcstack.report.model import Outcome, Report

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
    """The report for a terminal."""
    lines = [
        f"{report.stack}  image sha256:{report.image_sha256[:12]}  suite {report.suite_name}",
        f"{format_count(len(report.nodes), 'node')}: {shown_hosts(report.nodes)}; "
        f"{format_count(report.world_size, 'rank')}, "
        f"{report.backend or 'no'} backend, runtime {report.runtime}; {report.seconds:.0f} s",
        *(f"NOTE {caveat}" for caveat in report.caveats()),
        "",
    ]
    shown: list[str] = []
    for outcome in report.outcomes:
        lines.append(
            (
                f"{outcome.status:<5} {outcome.code:<24} {outcome.measured or outcome.evidence}"
            ).rstrip()
        )
        if outcome.status in ("FAIL", "WARN", "ERROR"):
            found = list_details(outcome)
            lines += found if found != shown else ["        as above"]
            shown = found
    counts = report.counts()
    tally = ", ".join(
        f"{counts[status]} {status}"
        for status in ("PASS", "FAIL", "ERROR", "WARN", "SKIP")
        if counts[status]
    )
    verdict = report.verdict(strict=strict) + (", CPU only" if cpu_only(report) else "")
    return "\n".join([*lines, "", f"{verdict}: {tally or 'no check ran'}"]) + "\n"


def cpu_only(report: Report) -> bool:
    """Whether nothing of what passed has looked at a GPU."""
    passed = {one.code for one in report.outcomes if one.status == "PASS"}
    return report.verdict() == "PASS" and report.backend != "nccl" and not passed & GPU_CHECKS


def list_details(outcome: Outcome) -> list[str]:
    shown = {
        "expected": f"{outcome.expected} ({outcome.source})"
        if outcome.source
        else outcome.expected,
        "on": ", ".join(outcome.where),
        "seen": outcome.evidence,
        "remedy": outcome.remedy,
    }
    return [f"        {name}: {value}" for name, value in shown.items() if value]
