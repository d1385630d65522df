"""Two reports side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcstack.report import Report


def compare_reports(first: Report, second: Report) -> list[dict[str, Any]]:
    """A row for each check of both: the statuses, and each figure with the ratio of the second to
    the first.
    """
    out = []
    others = {one.code: one for one in second.outcomes}
    for one in first.outcomes:
        other = others.get(one.code)
        if other is None or (one.status == other.status == "SKIP"):
            continue
        figures = {
            name: [
                value,
                other.figures[name],
                round(other.figures[name] / value, 4) if value else None,
            ]
            for name, value in one.figures.items()
            if name in other.figures
        }
        out.append(
            {
                "code": one.code,
                "statuses": [one.status, other.status],
                "seconds": [one.seconds, other.seconds],
                "figures": figures,
                "informational": one.informational or other.informational,
            }
        )
    return out
