"""Put together what is known of a hanging job, for people and as JSON.

All of it comes from what launchers/on-node/stacks.sh printed on the nodes, but for the files of
torch's flight recorder, which are read here.

Tested in tests/unit/launch/test_activity.py.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpcstack.core.errors import InputError
from hpcstack.launch.activity import Activity, parse_activity, summarise_activity
from hpcstack.launch.flights import read_flights
from hpcstack.launch.hang import (
    STOPPED,
    Rank,
    describe_ranks,
    group_by_step,
    judge_ranks,
    parse_ranks,
)
from hpcstack.launch.job_flights import Seen
from hpcstack.launch.ras import parse_ras, summarise_ras
from hpcstack.launch.wait_graph import (
    describe_diagnosis,
    diagnose_hang,
    summarise_diagnosis,
)

UNREAD_FLIGHTS = (
    "flight recorder: its files are the job's user's, and are not read here (--as-user)"
)


@dataclass(frozen=True)
class HangReport:
    """What is known of a hanging job. `well` means: each rank was found and nothing stands out."""

    document: dict[str, Any]
    lines: list[str]
    well: bool


def report_hang(text: str, silent: int = 0, *, reads_files: bool = True) -> HangReport:
    """Return the report on TEXT, what stacks.sh printed on all nodes but the SILENT ones.

    It covers the ranks' stacks, NCCL's RAS, torch's flight recorders, GPUs and ports. The
    recorders' files are read by this machine, if it sees them; without READS_FILES they are left
    alone, since their owner chose where and what they are.
    """
    ranks = parse_ranks(text)
    lines, well = describe_ranks(ranks)
    document: dict[str, Any] = {
        "steps": _describe_steps(ranks),
        "ras": None,
        "flights": None,
        "activity": [],
    }

    ras = parse_ras(text)
    if ras:
        document["ras"] = {
            "odd": list(ras.odd),
            "notes": list(ras.notes),
            "text": ras.text,
            "whole": ras.whole,
            "roots": [asdict(one) for one in ras.roots],
        }
        lines += ["", *summarise_ras(ras)]
        well = well and ras.whole and not ras.odd

    activity = parse_activity(text)
    flights: dict[str, Any] | None = None
    flight_lines: list[str] = []
    quiet = True
    if reads_files:
        flights, flight_lines, quiet = _report_flights(activity, _list_seen(ranks, silent))
    elif activity.flights:
        flight_lines = [UNREAD_FLIGHTS]
    activity_lines = summarise_activity(activity)
    document["flights"] = flights
    document["activity"] = activity_lines
    if not quiet:
        lines = [*flight_lines, "", *lines]  # the root before its victims
    elif flight_lines:
        lines += ["", *flight_lines]
    if activity_lines:
        lines += ["", *activity_lines]
    return HangReport(document, lines, well and quiet and not activity.silent)


def _describe_steps(ranks: list[Rank]) -> list[dict[str, Any]]:
    """Return the part of the document about RANKS: for each step, who does what and who is odd."""
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


def _list_seen(ranks: list[Rank], silent: int) -> Seen:
    """Return what the stacks of RANKS tell for the graph of waits.

    A rank that was not found is absent only where no node was SILENT. Of several steps nothing is
    told: each counts its ranks from 0, and the recorders' files do not say which step they are of.
    """
    steps = group_by_step(ranks)
    if len(steps) != 1:
        return Seen()
    verdict = judge_ranks(ranks)
    return Seen(
        world=max(rank.world for rank in ranks),
        hosts={rank.number: rank.host for rank in ranks},
        doing={rank.number: str(rank.whereabouts) for rank in ranks},
        stopped=frozenset(rank.number for rank in ranks if rank.state in STOPPED),
        absent=frozenset() if silent else frozenset(verdict.missing),
        elsewhere=frozenset(
            rank.number for rank in ranks if rank.stack and not rank.whereabouts.collective
        ),
    )


def _report_flights(
    activity: Activity, seen: Seen
) -> tuple[dict[str, Any] | None, list[str], bool]:
    """Return (document, lines, whether all is well) for the recorders that can be read here.

    The first place with files counts. Without any, the document is None and the lines say why. SEEN
    is what stacks say.
    """
    problems: list[str] = []
    for prefix, since in sorted(activity.flights.items()):
        unread: list[str] = []
        try:
            found = read_flights(Path(prefix).parent, Path(prefix).name, since, unread=unread)
        except InputError as error:
            # The files are on the nodes' own disks, or torn, or were not written yet.
            problems.append(f"flight recorder: {error}")
            continue
        diagnosis = diagnose_hang(found, seen)
        lines = summarise_diagnosis(found, diagnosis)
        lines += [f"NOTE: {problem}; what it would say is not known" for problem in unread]
        if not diagnosis.well:
            lines.append("(a rank that is behind may only be slow: ask again)")
        return describe_diagnosis(found, diagnosis), lines, diagnosis.well and not unread
    return None, problems, True
