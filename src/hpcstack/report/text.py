"""The report for a terminal. Pure."""

from __future__ import annotations

from hpcstack.report.model import Outcome, Report


def text(report: Report, *, strict: bool = False) -> str:
    """The report for a terminal."""
    lines = [
        f"{report.stack}  image sha256:{report.image_sha256[:12]}  suite {report.suite}",
        f"{len(report.nodes)} node(s): {', '.join(report.nodes)}; {report.world_size} ranks, "
        f"{report.backend or 'no'} backend, runtime {report.runtime}; {report.seconds:.0f} s",
        *(f"NOTE {caveat}" for caveat in report.caveats()),
        "",
    ]
    shown: list[str] = []
    for outcome in report.outcomes:
        lines.append(f"{outcome.status:<5} {outcome.code:<24} {outcome.measured or outcome.evidence}".rstrip())
        if outcome.status in ("FAIL", "WARN", "ERROR"):
            found = details(outcome)
            lines += found if found != shown else ["        as above"]
            shown = found
    counts = report.counts()
    tally = ", ".join(
        f"{counts[status]} {status}" for status in ("PASS", "FAIL", "ERROR", "WARN", "SKIP") if counts[status]
    )
    return "\n".join([*lines, "", f"{report.verdict(strict=strict)}: {tally or 'no check ran'}"]) + "\n"


def details(outcome: Outcome) -> list[str]:
    shown = {
        "expected": f"{outcome.expected} ({outcome.source})" if outcome.source else outcome.expected,
        "on": ", ".join(outcome.where),
        "seen": outcome.evidence,
        "remedy": outcome.remedy,
    }
    return [f"        {name}: {value}" for name, value in shown.items() if value]
