"""What NCCL's own RAS says of a job: which ranks do not answer it, which are behind in their
collectives. Pure.

launchers/on-node/stacks.sh asks the RAS of one node (localhost:28028, or NCCL_RAS_ADDR), which
knows of all: as JSON since NCCL 2.28.7, as text since 2.24
(docs/userguide/source/troubleshooting/ras.rst of NVIDIA/nccl).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcstack.core.errors import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

LINE = re.compile(r"^(?: *\d+: ?)?hpcstack-ras: (.*)$")
MISSING = re.compile(r"^\s*The missing ranks?: (.+)$")
PROCESS = re.compile(r"^\s*(Process \d+ on node \S+ managing GPUs? \S+)")
LAUNCHED = re.compile(r"^\s*(\d+) ranks? (?:has|have) (launched up to operation \d+|status \S+)")
NAMED = re.compile(r"^\s*Rank (\d+) -- GPU \d+ managed by process (\d+) on node (\S+)")
MOST = 12


@dataclass(frozen=True)
class RasAnswer:
    """`odd`: who is out of step for certain; `notes`: who is behind, which may only be slow;
    `text`: all of it.
    """

    odd: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    text: str = ""


def parse_ras(text: str) -> RasAnswer | None:
    """The answer in what stacks.sh printed on all nodes; None where no RAS answered."""
    said = [match[1] for line in text.splitlines() if (match := LINE.match(line))]
    said = [line for line in said if line not in ("OK",) and not line.startswith("ERROR: ")]
    if not any(line.strip() for line in said):
        return None
    whole = "\n".join(said)
    begin, end = whole.find("{"), whole.rfind("}")
    if begin >= 0 and end > begin:
        try:
            return parse_ras_json(json.loads(whole[begin : end + 1]), whole)
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            pass  # cut, or of another form: its lines are shown
    return from_text(said)


def parse_ras_json(document: dict[str, Any], text: str) -> RasAnswer:
    """The document of `SET FORMAT json`: a dump of what each rank says of each communicator."""
    odd: list[str] = []
    notes: list[str] = []
    for one in document.get("communicators", []):
        name = (
            f"communicator {one.get('hash', '?')} of "
            f"{format_count(int(one.get('size', 0)), 'rank')}"
        )
        for rank in one.get("missing_ranks", []):
            state = rank.get("status", {})
            why = "is dead" if state.get("considered_dead") else "does not answer NCCL"
            odd.append(f"rank {rank['rank']} ({_process(rank)}) {why}; {name}")
        for rank in one.get("ranks", []):
            state = rank.get("status", {})
            if state.get("async_error"):
                odd.append(
                    f"rank {rank['rank']} ({_process(rank)}) has NCCL's error "
                    f"{state['async_error']}; {name}"
                )
            elif state.get("init_state") == 7:
                notes.append(f"rank {rank['rank']} ({_process(rank)}) is still connecting; {name}")
        notes += [f"{said}; {name}" for said in _behind(one.get("ranks", []))]
    return RasAnswer(tuple(odd[:MOST]), tuple(notes[:MOST]), text)


def _process(rank: dict[str, Any]) -> str:
    return f"process {rank.get('pid', '?')} on {rank.get('host', '?')}"


def _behind(ranks: Sequence[dict[str, Any]]) -> list[str]:
    """Ranks whose count of a collective is not that of most."""
    out = []
    names = dict.fromkeys(name for rank in ranks for name in rank.get("collective_counts", {}))
    for name in names:
        counts = Counter(rank.get("collective_counts", {}).get(name, 0) for rank in ranks)
        usual, many = counts.most_common(1)[0]
        for rank in ranks:
            value = rank.get("collective_counts", {}).get(name, 0)
            if value != usual:
                others = format_count(many, "rank")
                out.append(
                    f"rank {rank['rank']} ({_process(rank)}) has launched {value} {name}, "
                    f"{others} {usual}"
                )
    return out


def from_text(lines: Sequence[str]) -> RasAnswer:
    """The text of VERBOSE STATUS, whose form differs from release to release: what names ranks or
    processes in it.
    """
    odd: list[str] = []
    notes: list[str] = []
    section = kind = ""
    for line in lines:
        if line.strip() in ("Errors", "Warnings"):
            section = line.strip()
        elif launched := LAUNCHED.match(line):
            kind = launched[2]
        elif missing := MISSING.match(line):
            odd.append(f"missing from NCCL: rank {missing[1].strip()}")
        elif section == "Errors" and (process := PROCESS.match(line)):
            odd.append(f"{process[1]} does not answer NCCL")
        elif named := NAMED.match(line):
            notes.append(
                f"rank {named[1]} (process {named[2]} on {named[3]}) has {kind or 'something else'}"
            )
    return RasAnswer(tuple(dict.fromkeys(odd))[:MOST], tuple(notes[:MOST]), "\n".join(lines))


def summarise_ras(answer: RasAnswer) -> list[str]:
    """Lines for people."""
    if not answer.odd and not answer.notes:
        return ["NCCL's RAS: every rank answers, and all have launched as many collectives"]
    out = [f"ODD, by NCCL's RAS: {one}" for one in answer.odd]
    out += [f"NCCL's RAS: {one}" for one in answer.notes]
    return [*out, "(who is behind may only be slow: ask once more)"] if answer.notes else out
