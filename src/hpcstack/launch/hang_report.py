"""All that is known of a job that hangs, by what launchers/on-node/stacks.sh printed: for people,
and as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcstack.core.errors import InputError
from hpcstack.launch.activity import Activity, parse_activity, summarise_activity
from hpcstack.launch.flights import judge_flights, read_flights, summarise_flights
from hpcstack.launch.hang import Rank, describe_ranks, group_by_step, judge_ranks, parse_ranks
from hpcstack.launch.ras import parse_ras, summarise_ras


@dataclass(frozen=True)
class HangReport:
    """`well`: each rank was found and nothing stands out."""

    document: dict[str, Any]
    lines: list[str]
    well: bool


def report_hang(text: str) -> HangReport:
    """Stacks, NCCL's RAS, flight recorders (read here, where this machine sees them), GPUs and
    ports.
    """
    ranks = parse_ranks(text)
    lines, well = describe_ranks(ranks)
    document: dict[str, Any] = {
        "steps": _steps(ranks),
        "ras": None,
        "flights": None,
        "activity": [],
    }
    if ras := parse_ras(text):
        document["ras"] = {"odd": list(ras.odd), "notes": list(ras.notes), "text": ras.text}
        lines = [*lines, "", *summarise_ras(ras)]
        well = well and not ras.odd
    activity = parse_activity(text)
    flights, said, quiet = _flights(activity)
    document["flights"] = flights
    document["activity"] = summarise_activity(activity)
    for more in (said, document["activity"]):
        lines += ["", *more] if more else []
    return HangReport(document, lines, well and quiet and not activity.silent)


def _steps(ranks: list[Rank]) -> list[dict[str, Any]]:
    out = []
    for step, own in group_by_step(ranks).items():
        verdict = judge_ranks(own)
        groups = [
            {
                "doing": str(what),
                "ranks": [one.number for one in members],
                "hosts": sorted({one.host for one in members}),
                "stack": [str(frame) for frame in members[0].stack],
            }
            for what, members in verdict.groups
        ]
        out.append(
            {
                "step": step,
                "odd": list(verdict.odd),
                "missing": list(verdict.missing),
                "groups": groups,
            }
        )
    return out


def _flights(activity: Activity) -> tuple[dict[str, Any] | None, list[str], bool]:
    """(document, lines, whether nobody stands out) of the recorders' files that this machine sees."""
    said: list[str] = []
    for prefix, since in sorted(activity.flights.items()):
        try:
            found = read_flights(Path(prefix).parent, Path(prefix).name, since)
        except InputError as error:  # on the nodes' own disks, nothing was written yet, or torn
            said.append(f"flight recorder: {error}")
            continue
        odd, notes = judge_flights(found)
        lines, quiet = summarise_flights(found)
        slow = [] if quiet else ["(who is behind may only be slow: ask once more)"]
        return {"ranks": sorted(found), "odd": odd, "notes": notes}, [*lines, *slow], quiet
    return None, said, True
