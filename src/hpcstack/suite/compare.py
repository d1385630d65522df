"""Compare two reports, check by check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcstack.report import Report


def compare_reports(first: Report, second: Report) -> list[dict[str, Any]]:
    """Return a row for each check that is in both reports, and was not skipped in both.

    A figure is [the first report's value, the second's, their ratio]; the ratio is that of the
    second to the first, or None where the first is 0.
    """
    out = []
    others = {one.code: one for one in second.outcomes}
    for one in first.outcomes:
        other = others.get(one.code)
        if other is None or (one.status == other.status == "SKIP"):
            continue

        figures = {}
        for name, value in one.figures.items():
            if name in other.figures:
                other_value = other.figures[name]
                ratio = round(other_value / value, 4) if value else None
                figures[name] = [value, other_value, ratio]
        row = {
            "code": one.code,
            "statuses": [one.status, other.status],
            "seconds": [one.seconds, other.seconds],
            "figures": figures,
            "informational": one.informational or other.informational,
        }
        out.append(row)
    return out
